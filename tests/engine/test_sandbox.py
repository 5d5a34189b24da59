"""The writable, protected and hidden paths of a workspace's sandbox, with real processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kedge.config.schema import Config
from kedge.engine.sandbox import OwnFiles, sandbox_limits
from kedge.engine.tool_processes import WardenMachine, environment
from kedge.tools.file_threads import FileThreads
from kedge.tools.tool_failed import ToolFailed
from kedge.warden.base import MechanismChoice
from kedge.warden.warden import Warden

ON = msgspec.convert({"sandbox": {"mode": "workspace-write"}}, Config)


@pytest.fixture
def own(tmp_path: Path) -> OwnFiles:
    for name in ("own/config", "own/data", "own/run", "work", "cwd"):
        (tmp_path / name).mkdir(parents=True)
    return OwnFiles(str(tmp_path / "own/config"), False, str(tmp_path / "own/data"), str(tmp_path / "own/run"))


@pytest.fixture
async def machine() -> AsyncIterator[Callable[[OwnFiles, MechanismChoice], WardenMachine]]:
    made: list[WardenMachine] = []

    def make(own: OwnFiles, mechanism: MechanismChoice = "any") -> WardenMachine:
        made.append(WardenMachine(Warden(mechanism), own))
        return made[-1]

    yield make
    for machine in made:
        await machine.close()


async def output(machine: WardenMachine, workspace: Path, script: str, config: Config = ON) -> str:
    process = await (await machine.processes(config, str(workspace), FileThreads(""))).start(
        ("sh", "-c", script), workspace
    )
    seen = b""
    while data := await process.read():
        seen += data
    await process.end(0)
    return seen.decode()


@pytest.mark.found(
    "attack 23",
    "an empty TMPDIR made the working directory of the server writable to sandboxed commands; only an absolute path "
    "is accepted",
)
@pytest.mark.parametrize("value", ["", ".", "cwd", "/", "//"])
def test_only_an_absolute_tmpdir_is_writable(
    value: str, tmp_path: Path, own: OwnFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", value)
    monkeypatch.chdir(tmp_path)
    assert sandbox_limits(ON, "/somewhere", own).writable == ("/somewhere", os.path.realpath("/tmp"))
    assert os.path.isabs(environment(ON).get("TMPDIR", "/tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "cwd"))
    assert sandbox_limits(ON, "/somewhere", own).writable == ("/somewhere", str(tmp_path / "cwd"))


@pytest.mark.found(
    "attack 15",
    "with Landlock alone, kedge's files inside a writable directory cannot be protected; no command runs there",
)
async def test_landlock_alone_refuses_a_workspace_with_kedges_files(
    tmp_path: Path, own: OwnFiles, machine: Callable[..., WardenMachine]
) -> None:
    with pytest.raises(ToolFailed, match=f"{own.config} is in {tmp_path}, where commands may write"):
        await output(machine(own, "subreaper"), tmp_path, "true")


async def test_link_to_kedges_files_is_refused(
    tmp_path: Path, own: OwnFiles, machine: Callable[..., WardenMachine]
) -> None:
    """A command could replace the link, and the next server would read its target."""
    (tmp_path / "work" / "link").symlink_to(tmp_path / "own")
    linked = replace(own, config=str(tmp_path / "work" / "link" / "config"))
    with pytest.raises(ToolFailed, match="is a link to kedge's own files"):
        await output(machine(linked), tmp_path / "work", "true")


async def test_command_cannot_create_missing_files_of_kedge(
    tmp_path: Path, own: OwnFiles, machine: Callable[..., WardenMachine]
) -> None:
    one = machine(replace(own, config=str(tmp_path / ".config/kedge")))
    script = "mkdir -p .config/kedge; echo evil > .config/kedge/config.toml; echo over"
    with suppress(ToolFailed):  # without mount namespaces
        assert "over" in await output(one, tmp_path, script)
    assert not (tmp_path / ".config/kedge/config.toml").exists()
    named = replace(own, config=str(tmp_path / "config.toml"), config_is_file=True)
    with pytest.raises(ToolFailed, match=r"config\.toml (is missing|is in)"):
        await output(machine(named), tmp_path, "true")


async def test_sockets_configured_as_writable_stay_reachable(own: OwnFiles) -> None:
    docker = "/run/docker.sock"
    config = msgspec.convert({"sandbox": {"mode": "workspace-write", "writable": [docker]}}, Config)
    limits = sandbox_limits(config, "/work", own, {})
    assert docker in limits.reachable
    assert docker not in limits.hidden
    assert docker in sandbox_limits(ON, "/work", own, {}).hidden
    assert sandbox_limits(ON, os.path.expanduser("~"), own, {}).reachable == ()


@pytest.mark.found(
    "attack round 2: sandbox",
    "a sandboxed command in a workspace that contains kedge's own program (a home directory, a project with kedge in "
    "its environment) changed code that the server runs outside the sandbox; the program is now read-only there",
)
async def test_command_cannot_change_the_program_itself(
    tmp_path: Path, own: OwnFiles, machine: Callable[..., WardenMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "cwd"))
    package = tmp_path / "work" / "venv" / "lib" / "kedge"
    package.mkdir(parents=True)
    (package / "fetch.py").write_text("mine")
    installed = replace(own, program=(str(tmp_path / "work" / "venv"), "/usr"))
    script = "echo x >> venv/lib/kedge/fetch.py; mv venv aside; rm -rf venv; touch venv/lib/new; touch beside"
    with suppress(ToolFailed):  # without mount namespaces
        await output(machine(installed), tmp_path / "work", script)
        assert (tmp_path / "work" / "beside").exists()
    assert (package / "fetch.py").read_text() == "mine"
    assert [path.name for path in package.parent.iterdir()] == ["kedge"]
    with pytest.raises(ToolFailed, match="venv is in"):
        await output(machine(installed, "subreaper"), tmp_path / "work", "true")


@pytest.mark.found(
    "attack round 2: sandbox",
    "with the temporary directory as workspace, the sockets of all programs in it counted as sockets of the workspace",
)
def test_sockets_in_tmpdir_do_not_belong_to_the_workspace(tmp_path: Path, own: OwnFiles) -> None:
    environ = {"TMPDIR": str(tmp_path / "work")}
    assert sandbox_limits(ON, str(tmp_path), own, environ).reachable == ()
    assert sandbox_limits(ON, str(tmp_path / "work"), own, environ).reachable == ()
    assert sandbox_limits(ON, str(tmp_path / "work/a"), own, environ).reachable == (str(tmp_path / "work/a"),)
