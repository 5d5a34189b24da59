"""Tool processes: started through the warden, with a filtered environment, in the sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kedge.config.schema import Config
from kedge.core.approvals import Confinement
from kedge.engine.sandbox import OwnFiles, SandboxLimits, check, sandbox_limits
from kedge.tools.file_threads import FileThreads
from kedge.tools.process_port import Process, Processes
from kedge.tools.tool_failed import ToolFailed
from kedge.warden.base import ProcessFailed, ProcessSpec, WardenFailed
from kedge.warden.warden import Warden
from kedge.warden.warden_process import WardenProcess

#: Variables of the server's environment that tool processes inherit: paths and the user's language. Keys, tokens and
#: everything else are left out unless the configuration names them.
INHERITED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "TZ", "XDG_RUNTIME_DIR"}
    | {"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "VIRTUAL_ENV", "PYENV_ROOT", "NVM_DIR", "JAVA_HOME"}
    | {"GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)
#: No pager, no editor, no prompts: there is no terminal.
FIXED = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "EDITOR": "true",
    "KEDGE": "1",
    # A clone may contain a bare repository as plain files, whose configuration names programs to run: git must not
    # use a directory as one without --git-dir.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
}


def environment(config: Config, server: Mapping[str, str] = os.environ) -> dict[str, str]:
    names = INHERITED | set(config.tools.environment)
    inherited = {name: value for name, value in server.items() if name in names or name.startswith("LC_")}
    # Only absolute paths: with a relative one, a program in a repository could replace `bash` or `ls`.
    directories = [path for path in inherited.get("PATH", "").split(os.pathsep) if os.path.isabs(path)]
    if not os.path.isabs(inherited.get("TMPDIR", "")):
        inherited.pop("TMPDIR", None)  # a relative path would differ between programs
    return {**inherited, "PATH": os.pathsep.join(directories) or os.defpath, **FIXED}


class WardenMachine:
    """One warden for all workspaces, started with the first tool call."""

    def __init__(self, warden: Warden, own: OwnFiles) -> None:
        self._warden = warden
        self._own = own
        self._starting = asyncio.Lock()
        self._is_started = False
        self._has_failed = False

    async def processes(self, config: Config, workspace: str, files: FileThreads) -> Processes:
        with suppress(WardenFailed):  # the first process reports it
            await self._start(retry=False)
        return _WorkspaceProcesses(self, environment(config), partial(self._limits, config, workspace), files)

    @property
    def can_confine(self) -> bool:
        return self._warden.sandbox.can_confine

    async def _start(self, *, retry: bool = True) -> None:
        async with self._starting:
            if self._is_started or (self._has_failed and not retry):
                return
            try:
                await self._warden.start()
            except WardenFailed:
                self._has_failed = True
                raise
            self._is_started = True

    async def run(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        env: Mapping[str, str],
        stdin: BinaryIO | None,
        limits: Callable[[Path], SandboxLimits],
        files: FileThreads,
    ) -> WardenProcess:
        await self._start()
        spec = ProcessSpec(argv, str(cwd), env, stdin, **asdict(await files.run(limits, cwd)))
        return await self._warden.run(spec)

    def _limits(self, config: Config, workspace: str, cwd: Path) -> SandboxLimits:
        """Blocking. Reads the working directory first: a process must not be started in one that does not answer."""
        with suppress(OSError):  # the process reports that it cannot enter it
            os.stat(cwd)
        limits = sandbox_limits(config, workspace, self._own)
        check(self._own, limits, self._warden.sandbox)
        return limits

    async def close(self) -> None:
        await self._warden.close()


class NoMachine:
    """A machine without tool processes."""

    async def processes(self, config: Config, workspace: str, files: FileThreads) -> Processes:
        return _NoProcesses()

    async def close(self) -> None:
        pass


class _NoProcesses:
    environment: Mapping[str, str] = {}
    can_confine = False

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        raise ToolFailed("This server cannot start processes.")


class _WorkspaceProcesses:
    def __init__(
        self,
        machine: WardenMachine,
        environment: Mapping[str, str],
        limits: Callable[[Path], SandboxLimits],
        files: FileThreads,
    ) -> None:
        self._machine = machine
        self.environment = environment
        self._limits = limits
        self._files = files
        self.can_confine = machine.can_confine

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        with _as_tool_failed():
            return _ToolProcess(await self._machine.run(argv, cwd, self.environment, stdin, self._limits, self._files))


class _ToolProcess:
    def __init__(self, process: WardenProcess) -> None:
        self._process = process
        self.pid = process.pid
        self.read, self.end = process.read, process.end

    async def wait(self) -> int:
        with _as_tool_failed():
            status = await self._process.wait()
        return status.code if status.code is not None else -(status.signal or 0)

    async def alive(self) -> int:
        with _as_tool_failed():
            return await self._process.alive()


@contextmanager
def _as_tool_failed() -> Iterator[None]:
    """Turn a process error into the error of a tool call, so that the Run continues."""
    try:
        yield
    except (ProcessFailed, WardenFailed) as error:
        raise ToolFailed(str(error)) from error
