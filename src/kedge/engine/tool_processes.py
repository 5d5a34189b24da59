"""Tool processes: started through the warden, with a filtered environment, in the sandbox."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kedge.config.schema import Config
from kedge.core.approvals import Confinement
from kedge.engine.guarded_paths import Scan, protected_paths, scan
from kedge.engine.read_only_git import LIST, LISTING_BYTES_MAX, configuration, git_environment
from kedge.engine.sandbox import OwnFiles, SandboxLimits, check, sandbox_limits
from kedge.engine.withheld_files import remove_oldest, withhold
from kedge.errors import DirectoryTimeout
from kedge.programs import program_outside
from kedge.tools.file_threads import FileThreads
from kedge.tools.process_port import PipedProcess, Process, Processes
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
#: Limits of each process of a read-only command, which runs unasked: `jq '[range(1e9)]'` must not take the memory of
#: the machine. git, grep, sort, jq, node and go need some 100 MB and a few seconds. Bytes and seconds.
READ_ONLY_DATA_BYTES_MAX = 4 * 1024**3
READ_ONLY_CPU_S_MAX = 600
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
    **configuration([("safe.bareRepository", "explicit")]),
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
            await self.start(retry=False)
        limits = partial(self._limits, config, workspace)
        return _WorkspaceProcesses(self, workspace, environment(config), limits, files)

    @property
    def can_confine(self) -> bool:
        return self._warden.sandbox.can_confine

    async def start(self, *, retry: bool = True) -> None:
        async with self._starting:
            if self._is_started or (self._has_failed and not retry):
                return
            try:
                await self._warden.start()
            except WardenFailed:
                self._has_failed = True
                raise
            self._is_started = True

    async def run(self, spec: ProcessSpec) -> WardenProcess:
        return await self._warden.run(spec)

    @property
    def withheld_directory(self) -> str:
        return os.path.join(self._own.data_dir, "withheld")

    def _limits(
        self, config: Config, workspace: str, confinement: Confinement, cwd: Path
    ) -> tuple[SandboxLimits, Scan | None]:
        """Return the sandbox, and the guarded files of the workspace if it protects them. Blocking.

        Reads the working directory first: a process must not be started in one that does not answer."""
        with suppress(OSError):  # the process reports that it cannot enter it
            os.stat(cwd)
        sandbox = self._warden.sandbox
        # A read-only command is restricted as far as the machine can do it: its table of options protects as well.
        is_enforced = sandbox.is_available if confinement == "read_only" else sandbox.can_confine
        confinement = confinement if is_enforced else "configured"
        before = scan(workspace) if confinement == "workspace" else None
        guarded = protected_paths(before) if before is not None else ()
        limits = sandbox_limits(config, workspace, self._own, confinement=confinement, guarded=guarded)
        if confinement == "read_only" and sandbox.network is None:
            limits = replace(limits, network=True)
        check(self._own, limits, sandbox)
        return limits, before

    def stay_alive(self, until: float) -> None:
        self._warden.stay_alive(until)

    async def close(self) -> None:
        await self._warden.close()


class NoMachine:
    """A machine without tool processes."""

    async def processes(self, config: Config, workspace: str, files: FileThreads) -> Processes:
        return _NoProcesses()

    def stay_alive(self, until: float) -> None:
        pass

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

    async def start_piped(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        environment: Mapping[str, str] | None = None,
        separate_stderr: bool = False,
        confinement: Confinement = "configured",
    ) -> PipedProcess:
        raise ToolFailed("This server cannot start processes.")


class _WorkspaceProcesses:
    def __init__(
        self,
        machine: WardenMachine,
        workspace: str,
        environment: Mapping[str, str],
        limits: Callable[[Confinement, Path], tuple[SandboxLimits, Scan | None]],
        files: FileThreads,
    ) -> None:
        self._machine = machine
        self._workspace = workspace
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
            await self._machine.start()
            limits, before = await self._files.run(self._limits, confinement, cwd)
            spec = ProcessSpec(argv, str(cwd), self.environment, stdin, **asdict(limits))
            if confinement == "read_only":
                scratch = {"TMPDIR": limits.scratch} if limits.scratch else {}
                spec = replace(
                    spec,
                    env={**spec.env, **scratch, **git_environment()},
                    data_bytes_max=READ_ONLY_DATA_BYTES_MAX,
                    cpu_s_max=READ_ONLY_CPU_S_MAX,
                )
                if any("git" in word for word in argv):
                    spec = replace(spec, env={**spec.env, **git_environment(await self._git_settings(spec))})
            process = await self._machine.run(spec)
            return _ToolProcess(process, None if before is None else partial(self._withhold, before))

    async def _withhold(self, before: Scan) -> str:
        directory = self._machine.withheld_directory
        try:
            note = (await self._files.run(withhold, before, directory)).note()
            if note:
                await self._files.run(remove_oldest, directory)
            return note
        except (DirectoryTimeout, OSError) as error:
            return f"New guarded files of this command may be left, since checking them failed: {error}"

    async def start_piped(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        environment: Mapping[str, str] | None = None,
        separate_stderr: bool = False,
        confinement: Confinement = "configured",
    ) -> PipedProcess:
        with _as_tool_failed():
            await self._machine.start()
            limits, _ = await self._files.run(self._limits, confinement, cwd)
            env = {**self.environment, **(environment or {})}
            if confinement == "read_only":
                env |= git_environment() | ({"TMPDIR": limits.scratch} if limits.scratch else {})
            spec = ProcessSpec(argv, str(cwd), env, "pipe", separate_stderr, **asdict(limits))
            return _ToolProcess(await self._machine.run(spec))

    async def _git_settings(self, spec: ProcessSpec) -> bytes:
        """Return the output of `read_only_git.LIST`, in the directory and the sandbox of a command."""
        path = spec.env.get("PATH", os.defpath)
        git = await self._files.run(program_outside, "git", path, Path(self._workspace))
        if git is None:
            return b""
        process = await self._machine.run(replace(spec, argv=(git, *LIST), stdin=None))
        listing = b""
        try:
            while (data := await process.read()) and len(listing) <= LISTING_BYTES_MAX:
                listing += data
        finally:
            await process.end(0)
        if len(listing) > LISTING_BYTES_MAX:
            raise ToolFailed(f"The configuration of this git repository is larger than {LISTING_BYTES_MAX} bytes.")
        return listing


class _ToolProcess:
    def __init__(self, process: WardenProcess, withhold: Callable[[], Awaitable[str]] | None = None) -> None:
        self._process = process
        self._withhold = withhold
        self.pid = process.pid
        self.read = process.read
        self.read_stderr = process.read_stderr
        self.close_input = process.close_stdin

    async def write(self, data: bytes) -> None:
        with _as_tool_failed():
            await self._process.write(data)

    async def wait(self) -> int:
        with _as_tool_failed():
            status = await self._process.wait()
        return status.code if status.code is not None else -(status.signal or 0)

    async def end(self, grace_s: float) -> tuple[int, ...]:
        return await self._process.end(grace_s)

    async def alive(self) -> int:
        with _as_tool_failed():
            return await self._process.alive()

    async def withhold(self) -> str:
        return "" if self._withhold is None else await self._withhold()


@contextmanager
def _as_tool_failed() -> Iterator[None]:
    """Turn a process error into the error of a tool call, so that the Run continues."""
    try:
        yield
    except (ProcessFailed, WardenFailed) as error:
        raise ToolFailed(str(error)) from error
