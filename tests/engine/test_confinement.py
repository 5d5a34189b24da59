"""Commands that run unasked: read-only, or with writes in the workspace alone; both without a network."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kedge.config.schema import Config, SandboxConfig
from kedge.core.approvals import Confinement
from kedge.engine import tool_processes
from kedge.engine.sandbox import OwnFiles
from kedge.engine.tool_processes import WardenMachine
from kedge.tools.file_threads import FileThreads
from kedge.warden.base import MechanismChoice, SandboxChoice, WardenFailed
from kedge.warden.warden import Warden

#: Each mechanism of the machine, and a machine without any sandbox.
MACHINES: dict[str, tuple[MechanismChoice, SandboxChoice]] = {
    "pid namespace": ("pid namespace", "any"),
    "user namespace": ("user namespace", "any"),
    "no namespaces": ("subreaper", "any"),
    "no sandbox": ("subreaper", "mounts"),
}


class Confined:
    """A workspace with a machine."""

    def __init__(self, machine: WardenMachine, root: Path) -> None:
        self.machine = machine
        self.root = root

    async def can_confine(self) -> bool:
        return (await self.machine.processes(Config(), str(self.root), FileThreads(""))).can_confine

    async def run(self, script: str, confinement: Confinement, config: Config | None = None) -> str:
        processes = await self.machine.processes(config or Config(), str(self.root), FileThreads(""))
        process = await processes.start(("bash", "-c", script), self.root, confinement=confinement)
        output = b""
        while data := await process.read():
            output += data
        await process.end(0)
        return output.decode() + await process.withhold()


@pytest.fixture(params=MACHINES)
async def confined(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Confined]:
    for name in ("own/config", "own/data", "own/run", "work", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    own = OwnFiles(str(tmp_path / "own/config"), False, str(tmp_path / "own/data"), str(tmp_path / "own/run"))
    warden = Warden(*MACHINES[request.param])
    try:
        await warden.start()
    except WardenFailed as error:
        pytest.skip(str(error))
    await warden.close()
    machine = WardenMachine(Warden(*MACHINES[request.param]), own)
    yield Confined(machine, tmp_path / "work")
    await machine.close()


def git(*words: str, cwd: Path) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgSign=false")
    subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def hostile(confined: Confined) -> Path:
    """A repository whose configuration names programs wherever it can. Each of them leaves a canary."""
    root = confined.root
    canary, evil = root.parent / "canary", root.parent / "evil"
    evil.write_text(f'#!/bin/sh\necho "$@" >> {canary}\necho canary "$@"\n')
    evil.chmod(0o755)
    git("init", "-q", cwd=root)
    (root / ".gitattributes").write_text("*.txt diff=one filter=f\n*.bin diff=two\n*.md filter=g\n")
    for number in (1, 2):
        for name in ("a.txt", "a.bin", "a.md"):
            (root / name).write_text(f"line {number}\n")
        git("add", ".", cwd=root)
        git("commit", "-qm", f"commit {number}", cwd=root)
    for name in ("a.txt", "a.bin", "a.md"):
        (root / name).write_text("line 3\n")
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (root / ".git/hooks" / hook).write_bytes(evil.read_bytes())
        (root / ".git/hooks" / hook).chmod(0o755)
    settings = {"log.showSignature": "true", "format.pretty": "%h %G? %s", "status.submoduleSummary": "true"}
    settings |= {"diff.submodule": "log", "core.hooksPath": str(root / ".git/hooks")}
    keys = ("core.fsmonitor", "core.pager", "pager.log", "diff.external", "diff.one.textconv", "diff.two.command")
    more = ("filter.f.process", "filter.g.clean", "credential.helper", "core.sshCommand", "gpg.program")
    for key, value in {**settings, **{key: f"{evil} {key}" for key in keys + more}}.items():
        git("config", key, value, cwd=root)
    return canary


async def test_read_only_git_runs_no_program_of_the_repository(confined: Confined, hostile: Path) -> None:
    read = ["git status", "git diff", "git log -p", "git show", "git blame a.txt", "git ls-files -m", "git branch -a"]
    script = "; ".join(f"echo '== {line}'; {line}" for line in read)
    output = await confined.run(script, "read_only")
    assert "canary" not in output
    assert not hostile.exists()
    if "unable to create temp-file" in output:
        assert not await confined.can_confine()  # Landlock alone offers no temporary directory
        return
    status, diff, log, show, blame = output.split("== ")[1:6]
    assert "modified:   a.txt" in status
    assert diff.count("+line 3") == 3
    assert log.count("+line 2") == 3
    assert show.count("+line 2") == 3
    assert "line 3" in blame
    assert "fatal" not in output


async def test_read_only_commands_write_nothing(confined: Confined) -> None:
    if not await confined.can_confine():
        pytest.skip("this machine cannot confine commands")
    (confined.root / "file").write_text("old")
    script = """
        for attempt in 'echo x > file' 'echo x > new' 'echo x > $OLDTMP/new' 'chmod 777 file' 'touch file' 'rm file'; do
            (eval "$attempt") 2>/dev/null && echo "could: $attempt"
        done
        seq 300000 | sort -S 100K | tail -1
        mktemp >/dev/null && ls "$TMPDIR" | wc -l
    """
    output = await confined.run(f"OLDTMP={os.environ['TMPDIR']}\n{script}", "read_only")
    assert output.split() == ["99999", "1"]
    assert (confined.root / "file").read_text() == "old"
    assert sorted(os.listdir(confined.root)) == ["file"]
    assert os.listdir(os.environ["TMPDIR"]) == []


async def test_read_only_commands_have_limits(confined: Confined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine without a sandbox."""
    monkeypatch.setattr(tool_processes, "READ_ONLY_CPU_S_MAX", 1)
    limits = "ulimit -d; (while :; do :; done); echo $?"
    output = (await confined.run(limits, "read_only")).split()
    assert (output[0], output[-1]) == (str(tool_processes.READ_ONLY_DATA_BYTES_MAX // 1024), "137")
    assert await confined.run("ulimit -d", "workspace") == "unlimited\n"


@pytest.mark.parametrize("confinement", ["read_only", "workspace"])
async def test_confined_commands_have_no_network(confined: Confined, confinement: Confinement) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo connected"
        assert "connected" in await confined.run(script, "configured")
        output = await confined.run(script, confinement)
        if await confined.can_confine():
            assert "connected" not in output
            allowed = Config()
            allowed.sandbox.network = True
            has_network = "connected" in await confined.run(script, confinement, allowed)
            assert has_network == (confinement == "workspace")


#: Files that exist before the command, in a repository with a submodule and a linked work tree.
GUARDED = ["AGENTS.md", "pkg/CLAUDE.md", ".github/workflows/ci.yml", ".venv/bin/activate", ".vscode/tasks.json"]
GUARDED += [".envrc", ".git/config", ".git/hooks/pre-commit", ".git/modules/m/config", ".git/worktrees/w/commondir"]
GUARDED += ["crush.json", ".claude/settings.json", "target.md", "bare/hooks/post-update"]


@pytest.mark.parametrize("confinement", ["read_only", "workspace"])
async def test_credentials_of_the_home_are_hidden(
    confined: Confined, confinement: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not await confined.can_confine():
        return
    home = confined.root.parent / "home"
    (home / "keys").mkdir(parents=True)
    (home / "keys/id_rsa").write_text("KEY\n")
    (home / ".ssh").symlink_to("keys")
    for name in (".netrc", ".npmrc", ".plain"):
        (home / name).write_text(f"KEY {name}\n")
    monkeypatch.setenv("HOME", str(home))
    script = "cd; cat .ssh/id_rsa keys/id_rsa .netrc .npmrc; cat .plain; git config --get user.name; true"
    output = await confined.run(script, confinement)
    assert [line for line in output.splitlines() if line.startswith("KEY")] == ["KEY .plain"]
    assert "KEY .netrc" in await confined.run(script, "configured")
    online = Config(sandbox=SandboxConfig(network=True))
    assert ("KEY .netrc" in await confined.run(script, confinement, online)) == (confinement == "workspace")


@pytest.mark.found(
    "issue 20", "decoys filled the list of guarded files, and hooks became writable; they stay read-only"
)
async def test_decoys_do_not_open_guarded_files(confined: Confined) -> None:
    if not await confined.can_confine():
        pytest.skip("this machine cannot confine commands")
    git("init", "-q", cwd=confined.root)
    (confined.root / "pkg").mkdir()
    (confined.root / "pkg/AGENTS.md").write_text("mine")
    decoys = "for i in $(seq 210); do mkdir !$i; touch !$i/agents.md; done; seq 20500 | (cd !1 && xargs touch)"
    await confined.run(decoys, "workspace")
    script = "echo evil > .git/hooks/pre-commit; git config core.fsmonitor evil; echo evil > pkg/AGENTS.md"
    await confined.run(script, "workspace")
    assert not (confined.root / ".git/hooks/pre-commit").exists()
    assert "evil" not in (confined.root / ".git/config").read_text()
    assert (confined.root / "pkg/AGENTS.md").read_text() == "mine"


@pytest.mark.found("issue 20", "a new .git/commondir led git to another configuration; it is removed after the command")
async def test_git_directory_is_not_redirected(confined: Confined) -> None:
    if not await confined.can_confine():
        pytest.skip("this machine cannot confine commands")
    git("init", "-q", cwd=confined.root)
    assert await confined.run("cp -r .git other; echo ../other > .git/commondir; cat .git/commondir", "workspace")
    assert not (confined.root / ".git/commondir").exists()


async def test_workspace_commands_cannot_change_guarded_files(confined: Confined) -> None:
    if not await confined.can_confine():
        pytest.skip("this machine cannot confine commands")
    root = confined.root
    git("init", "-q", cwd=root)
    git("init", "-q", "--bare", "bare", cwd=root)
    for name in (".git/modules/m/HEAD", ".git/modules/m/refs/x", ".git/modules/m/objects/x", ".git/worktrees/w/HEAD"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    for name in GUARDED:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text((root / name).read_text() if (root / name).exists() else "mine")
    (root / "GEMINI.md").symlink_to("target.md")
    before = {name: (root / name).read_bytes() for name in GUARDED}
    script = f"""
        exec 2>/dev/null
        for file in {" ".join(GUARDED)}; do
            echo evil > $file; chmod 777 $file; rm -f $file; cp -r . $TMPDIR/copy; mv $TMPDIR/copy/$file $file
            ln $file twin && echo evil > twin; rm -f twin; mkdir -p new; mv new $(dirname $file); rm -rf $TMPDIR/copy
        done
        git config core.fsmonitor evil; mv .git aside; echo evil > .git/hooks/post-commit; mv pkg aside
        rm -rf .github .venv
        echo fine > README.md && git add README.md
        git -c user.name=a -c user.email=a@b commit -qm one && git log --oneline
        echo fine > $TMPDIR/file && echo done
    """
    output = await confined.run(script, "workspace")
    assert {name: (root / name).read_bytes() for name in GUARDED} == before
    assert not (root / ".git/hooks/post-commit").exists()
    assert not (root / "aside").exists()
    assert output.split()[-2:] == ["one", "done"]
