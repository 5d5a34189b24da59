"""The scripts run nothing from the directory in which they are called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
#: Modules that kedge, its libraries or the interpreter load by these names.
MODULES = (
    "kedge/__init__",
    "click",
    "json",
    "asyncio/__init__",
    "msgspec",
    "sitecustomize",
    "usercustomize",
    "uvicorn",
)
#: Programs that the launcher and the client call.
PROGRAMS = ("python3", "dirname", "readlink", "cat", "cksum", "uv", "flock", "git", "rg", "bash")


@pytest.fixture
def repository() -> Iterator[Path]:
    """A repository whose files record in `ran` that they were run. The path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="kedge-", ignore_cleanup_errors=True) as name:
        root = Path(name) / "repository"
        ran = root.parent / "ran"
        for module in MODULES:
            path = root / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"open({str(ran)!r}, 'a').write('{module}\\n')\n")
        for program in PROGRAMS:
            (root / program).write_text(f"#!/bin/sh\necho {program} >>{ran}\nexit 1\n")
            (root / program).chmod(0o755)
        (root / ".pdbrc").write_text(f"open({str(ran)!r}, 'a').write('pdbrc')\n")
        yield root


def links(directory: Path) -> Path:
    """A relative link to a link to the launcher."""
    (directory / "bin").mkdir()
    (directory / "opt").mkdir()
    (directory / "opt" / "kedge").symlink_to(SCRIPTS / "kedge")
    (directory / "bin" / "kedge").symlink_to("../opt/kedge")
    return directory / "bin" / "kedge"


@pytest.mark.timeout(180)
@pytest.mark.found(
    "attack 1",
    "`kedge` in a repository imported that repository's modules, and did not start through a link; Python now runs "
    "isolated, relative entries of PATH are dropped, and links are followed",
)
def test_kedge_runs_nothing_from_the_current_directory(repository: Path) -> None:
    home = repository.parent
    (home / "config.toml").write_text("[server]\nidle_exit_s = 0.5\ngrace_s = 0.2\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "XDG_", "PYTHON"))}
    environment = {
        **inherited,
        "HOME": str(home),
        "KEDGE_CONFIG": str(home / "config.toml"),
        "KEDGE_DATA_DIR": str(home / "data"),
        # Each has an entry for the current directory.
        "PATH": f".:{inherited.get('PATH', os.defpath)}:",
        "PYTHONPATH": ":.",
        "CDPATH": ".",
    }

    def kedge(launcher: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [launcher, *arguments], cwd=repository, env=environment, capture_output=True, text=True, check=False
        )

    linked = links(home)
    done = kedge(linked, "run", "list the files")  # starts a client, a server and a tool
    assert (done.returncode, (home / "ran").exists()) == (0, False), done.stderr
    assert "sitecustomize.py" in done.stdout
    done = kedge(SCRIPTS / "kedge", "stop", "--force")
    assert (done.returncode, (home / "ran").exists()) == (0, False), done.stderr


def test_scripts_import_nothing_from_the_current_directory() -> None:
    """They use -I or -P, except to run the tests of this clone, which need its directory."""
    called = [
        (script.name, line.strip())
        for script in SCRIPTS.iterdir()
        if script.suffix != ".py"
        for line in script.read_text().splitlines()
        if re.search(r'python"? (-[cm]|-$|- )', line) and not re.search(r"-m (pytest|tests\.)", line)
    ]
    assert called == []


@pytest.mark.parametrize(
    "name", sorted(path.name for path in SCRIPTS.iterdir() if path.suffix != ".py" and path.name != "kedge")
)
@pytest.mark.found(
    "attack round 2: sandbox",
    "scripts called from another directory ran its `dirname` if PATH has a relative entry, and followed CDPATH to "
    "other scripts; they now run nothing before they change to their own clone",
)
def test_scripts_run_nothing_from_the_callers_directory(name: str, repository: Path) -> None:
    home = repository.parent
    for clone, answer in (("clone", "own"), ("other/clone", "other")):
        (home / clone / "scripts").mkdir(parents=True)
        (home / clone / "scripts" / "environment").write_text(f"#!/bin/sh\necho {answer} >>{home}/called\nexit 3\n")
        (home / clone / "scripts" / "environment").chmod(0o755)
    (home / "clone" / "scripts" / name).write_bytes((SCRIPTS / name).read_bytes())
    (home / "dirname").write_bytes((repository / "dirname").read_bytes())
    (home / "dirname").chmod(0o755)
    environment = {"PATH": ".", "CDPATH": str(home / "other")}
    subprocess.run(
        ["/bin/sh", f"clone/scripts/{name}", "x"], cwd=home, env=environment, capture_output=True, check=False
    )
    assert not (home / "ran").exists()
    assert not (home / "called").exists() or (home / "called").read_text() == "own\n"


def test_environment_keeps_its_python(tmp_path: Path) -> None:
    """Without KEDGE_PYTHON an existing environment is reused; with it, another Python makes a new one."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "environment").write_bytes((SCRIPTS / "environment").read_bytes())
    (tmp_path / "some.lock").touch()

    def fake_python(name: str, version: str) -> Path:
        """A Python that describes itself, and lists its other calls in `calls`."""
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'#!/bin/sh\nif [ "$2" = -c ]; then echo {version} /opt; else echo {version} "$3" >>{tmp_path}/calls; fi\n'
        )
        path.chmod(0o755)
        return path

    (tmp_path / "bin").mkdir()  # no uv, which would be used instead of pip
    for program in ("awk", "cat", "cksum", "flock", "mkdir", "mktemp", "rm", "tail"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or "missing")

    def calls(**environment: str) -> list[str]:
        (tmp_path / "calls").write_text("")
        command = ["/bin/sh", str(tmp_path / "scripts" / "environment"), "some.lock"]
        environment["PATH"] = str(tmp_path / "bin")
        subprocess.run(command, env=environment, capture_output=True, check=False)
        return (tmp_path / "calls").read_text().splitlines()

    existing = fake_python(".venv/bin/python", "3.98.0")
    other = fake_python("other", "3.99.0")
    assert "3.98.0 pip" in calls()
    assert existing.exists()
    assert calls() == []
    assert calls(KEDGE_PYTHON=str(other)) == ["3.99.0 venv"]
    assert not existing.exists()
