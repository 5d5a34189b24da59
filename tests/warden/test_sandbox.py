"""A process with `writable` reads everywhere and writes only there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kedge.warden import bubblewrap
from kedge.warden.warden import Warden
from tests.warden.support import new_mark, read_all, spec


async def inside(warden: Warden, script: str, *writable: Path, home: Path) -> str:
    process = await warden.run(
        spec("bash", "-c", script, cwd=str(home), writable=tuple(map(str, writable)), env={"PATH": "/usr/bin:/bin"})
    )
    seen = await read_all(process)
    await process.end(0)
    return seen.decode()


async def test_it_writes_in_the_workspace_and_nowhere_else(sandboxed: Warden, tmp_path: Path) -> None:
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    elsewhere = Path("/tmp") / new_mark()
    workspace.mkdir()
    home.mkdir()
    (home / "precious").write_text("precious")
    script = f"""
        cd {workspace}
        mkdir -p a/b && echo one > a/b/file && mv a/b/file a/ && ln a/file a/twin && ln -s a/file link && rm a/twin
        truncate -s 2 a/file && cat a/file; echo
        cat {home}/precious; echo
        for attempt in 'echo x > {home}/new' 'echo x >> {home}/precious' 'truncate -s 0 {home}/precious' \\
            ': > {home}/precious' 'rm {home}/precious' 'mkdir {home}/d' 'mv {home}/precious .' 'mv a/file {home}' \\
            'ln -s x {home}/s' 'mkfifo {home}/f' 'ln {home}/precious twin' \\
            'echo x > {elsewhere}' 'echo x > link2/new'; do
            ln -sfn {home} link2
            eval "$attempt" 2>/dev/null && echo "could: $attempt"
        done
        echo gone > /dev/null && echo x > /dev/zero && bash -c 'echo child > {home}/child' 2>/dev/null || echo end
    """
    assert await inside(sandboxed, script, workspace, home=home) == "on\nprecious\nend\n"
    assert sorted(path.name for path in home.iterdir()) == ["precious"]
    assert (home / "precious").read_text() == "precious"
    assert not elsewhere.exists()


async def test_single_file_can_be_writable_and_paths_may_be_missing(sandboxed: Warden, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    script = f"echo new > {file}; echo x 2>/dev/null > {tmp_path}/other || echo refused"
    assert await inside(sandboxed, script, file, tmp_path / "missing", home=tmp_path) == "refused\n"
    assert file.read_text() == "new\n"


async def test_nothing_writable_is_a_sandbox_too(sandboxed: Warden, tmp_path: Path) -> None:
    assert await inside(sandboxed, "echo x 2>/dev/null > file || echo refused", home=tmp_path) == "refused\n"


async def test_the_sandbox_cannot_be_left(sandboxed: Warden, tmp_path: Path) -> None:
    script = f"""
        setsid -w bash -c 'echo x > {tmp_path}/a'
        unshare -Urm bash -c 'mount -t tmpfs none {tmp_path}; echo x > {tmp_path}/b'
    """
    await inside(sandboxed, script, home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_bubblewrap_command_binds_what_may_be_written() -> None:
    argv = bubblewrap.wrapped(
        spec("bash", "-c", "true", writable=("/work", "/tmp/x"), protected=("/work/a/b",), hidden=("/etc", "/missing"))
    )
    assert (Path(argv[0]).name, *argv[1:6]) == ("bwrap", "--ro-bind", "/", "/", "--dev", "/dev")
    assert argv[-4:] == ("--", "bash", "-c", "true")
    steps = ["--bind-try /work /work", "--tmpfs /etc", "--bind-try /tmp/x /tmp/x", "--bind-try /work/a /work/a"]
    text = " ".join(argv)
    positions = [text.index(step) for step in [*steps, "--ro-bind-try /work/a/b /work/a/b"]]
    assert positions == sorted(positions)
    assert "/missing" not in text


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_bubblewrap_holds(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    script = f"echo x > {tmp_path}/in/file; echo x > {tmp_path}/out"
    argv = bubblewrap.wrapped(spec("sh", "-c", script, writable=(str(tmp_path / "in"),)))
    subprocess.run(argv, stderr=subprocess.DEVNULL, check=False)
    assert (tmp_path / "in" / "file").exists()
    assert not (tmp_path / "out").exists()


async def test_a_place_that_was_swapped_for_a_link_cannot_be_written(sandboxed: Warden, tmp_path: Path) -> None:
    """A command that may write beside its own workspace could lead the next one anywhere."""
    if sandboxed.sandbox.bubblewrap:
        pytest.skip("bubblewrap goes by the path")
    place, home, work = tmp_path / "place", tmp_path / "home", tmp_path / "work"
    for directory in (place, home, work):
        directory.mkdir()
    place.rename(tmp_path / "aside")
    place.symlink_to(home)
    await inside(sandboxed, f"echo x > {home}/a; echo x > {work}/b", place, work, home=work)
    assert (list(home.iterdir()), [file.name for file in work.iterdir()]) == ([], ["b"])
