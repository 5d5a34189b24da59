"""Tool processes as the engine lets them start: through the warden, with a listed environment, in the sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from kedge.config.schema import Config
from kedge.engine.sandbox import Limits, OwnFiles, check, limits
from kedge.tools.process_port import Process, Processes
from kedge.tools.tool_failed import ToolFailed
from kedge.warden.base import ProcessFailed, ProcessSpec, WardenFailed
from kedge.warden.warden import Warden
from kedge.warden.warden_process import WardenProcess

#: What a tool process is given of the server's environment: what programs need to find things and to speak the user's
#: language. Keys, tokens and everything else stay out unless the configuration names them.
LISTED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "TZ", "XDG_RUNTIME_DIR"}
    | {"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "VIRTUAL_ENV", "PYENV_ROOT", "NVM_DIR", "JAVA_HOME"}
    | {"GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)
#: No pager, no editor and no question: there is nobody at the terminal, and no terminal.
SET = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "EDITOR": "true",
    "KEDGE": "1",
    # A clone may bring a bare repository as plain files, whose configuration names programs to run: git shall not take
    # a directory for one unless it is told to (--git-dir).
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
}


def environment(config: Config, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    named = LISTED | set(config.tools.environment)
    kept = {name: value for name, value in given.items() if name in named or name.startswith("LC_")}
    # Only whole paths: with a relative one, a program in a repository would be taken for `bash` or `ls`.
    places = [place for place in kept.get("PATH", "").split(os.pathsep) if os.path.isabs(place)]
    if not os.path.isabs(kept.get("TMPDIR", "")):
        kept.pop("TMPDIR", None)  # it would be another directory for each program
    return {**kept, "PATH": os.pathsep.join(places) or os.defpath, **SET}


class WardenMachine:
    """One warden for all workspaces, started with the first tool process."""

    def __init__(self, warden: Warden, own: OwnFiles) -> None:
        self._warden = warden
        self._own = own
        self._starting = asyncio.Lock()
        self._is_started = False

    async def processes(self, config: Config, workspace: str) -> Processes:
        return _WorkspaceProcesses(self, environment(config), limits(config, workspace, self._own))

    async def run(
        self, argv: tuple[str, ...], cwd: Path, env: Mapping[str, str], stdin: BinaryIO | None, limits: Limits
    ) -> WardenProcess:
        async with self._starting:
            if not self._is_started:
                await self._warden.start()
                self._is_started = True
        check(self._own, limits, self._warden.sandbox)
        return await self._warden.run(ProcessSpec(argv, str(cwd), env, stdin, **asdict(limits)))

    async def close(self) -> None:
        await self._warden.close()


class NoMachine:
    """Where nothing can be started: an engine without tool processes."""

    async def processes(self, config: Config, workspace: str) -> Processes:
        return _NoProcesses()

    async def close(self) -> None:
        pass


class _NoProcesses:
    environment: Mapping[str, str] = {}

    async def start(self, argv: tuple[str, ...], cwd: Path, *, stdin: BinaryIO | None = None) -> Process:
        raise ToolFailed("No process can be started here.")


class _WorkspaceProcesses:
    def __init__(self, machine: WardenMachine, environment: Mapping[str, str], limits: Limits) -> None:
        self._machine = machine
        self.environment = environment
        self._limits = limits

    async def start(self, argv: tuple[str, ...], cwd: Path, *, stdin: BinaryIO | None = None) -> Process:
        with _telling():
            return _ToolProcess(await self._machine.run(argv, cwd, self.environment, stdin, self._limits))


class _ToolProcess:
    def __init__(self, process: WardenProcess) -> None:
        self._process = process
        self.pid = process.pid
        self.read, self.end = process.read, process.end

    async def wait(self) -> int:
        with _telling():
            status = await self._process.wait()
        return status.code if status.code is not None else -(status.signal or 0)

    async def alive(self) -> int:
        with _telling():
            return await self._process.alive()


@contextmanager
def _telling() -> Iterator[None]:
    """What goes wrong with a process is told to who had it started; the Run goes on."""
    try:
        yield
    except (ProcessFailed, WardenFailed) as error:
        raise ToolFailed(str(error)) from error
