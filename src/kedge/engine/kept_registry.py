"""The kept commands of the server: each belongs to a session, outlives its Run, and ends with the server at the latest.

The Lane has the current records of this process, and the store follows: when a command is kept, and when it ended.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.kept_commands import KEPT_PER_SESSION_MAX, KeptCommand, KeptState, new_kept, state_text
from kedge.core.records import RunRecord
from kedge.core.untrusted_text import without_surrogates
from kedge.engine.append import Append
from kedge.engine.door import RETRY_S, RETRY_S_MAX, Door
from kedge.engine.lane_state import LaneState
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import KedgeError, KeptCommandNotFound, StoreUnavailable
from kedge.tools.background import GRACE_S, RunningCommand
from kedge.tools.tool_failed import ToolFailed
from kedge.waiting import backoff_s, wait_uncancelled

log = logging.getLogger("kedge.engine")

#: Kept commands of the server whose output is in memory, running and ended. With 230 KB each they take 15 MB. Items,
#: the oldest ended are dropped first.
KEPT_PER_SERVER_MAX = 64
#: Time to write the ends of commands when the server stops. Without it, the next process reports the same. Seconds.
LAST_WRITE_S = 2.0


class KeptOutput(Struct, frozen=True):
    """A kept command and its recent output."""

    command: KeptCommand
    output: str = ""
    #: The beginning of the output, or all of it, is no longer in memory.
    is_cut: bool = False


@dataclass(slots=True, eq=False)
class _Kept:
    session_id: str
    running: RunningCommand
    #: The state after its end, if it is ended on request.
    ended_as: KeptState = "exited"
    #: Ends when the end is recorded.
    watch: asyncio.Task[None] = field(init=False)


class KeptRegistry:
    def __init__(self, door: Door, workspaces: Workspaces) -> None:
        self._door = door
        self._workspaces = workspaces
        #: In order of their start.
        self._kept: dict[str, _Kept] = {}
        self._closing = False

    def of_run(self, run: RunRecord) -> SessionKept:
        workspace = self._workspaces.get(run.workspace_id)
        return SessionKept(self, workspace, workspace.lanes[run.session_id], run.run_id)

    async def output(self, workspace: Workspace, session_id: str, id_: str) -> KeptOutput:
        command = await self._command(workspace, session_id, id_)
        entry = self._kept.get(id_)
        if entry is None or entry.running.recent is None:
            return KeptOutput(command, is_cut=True)
        return KeptOutput(command, entry.running.recent.text, entry.running.recent.is_cut)

    async def end(self, workspace: Workspace, session_id: str, id_: str) -> KeptCommand:
        """End a command for the user. One that has ended stays as it is."""
        await self._command(workspace, session_id, id_)
        if (entry := self._kept.get(id_)) is not None:
            await self._end([entry])
        return await self._command(workspace, session_id, id_)

    async def end_session(self, session_id: str) -> None:
        """End the commands of a session that is about to be deleted."""
        await self._end([entry for entry in self._kept.values() if entry.session_id == session_id])

    async def close(self) -> None:
        """End all commands and try to record that."""
        self._closing = True
        running = [entry for entry in self._kept.values() if not entry.running.has_ended]
        ending = asyncio.ensure_future(self._end(running, "server_stopped"))
        watches = {entry.watch for entry in self._kept.values() if not entry.watch.done()}
        if watches:
            await asyncio.wait({ending}, timeout=GRACE_S + LAST_WRITE_S)
            await asyncio.wait(watches, timeout=LAST_WRITE_S)
        for task in (ending, *watches):
            task.cancel()
        await wait_uncancelled((ending, *watches))

    # --- for tool calls ------------------------------------------------------------------------------------------

    def check_room(self, state: LaneState) -> None:
        if self._closing:
            raise ToolFailed("the server is shutting down and keeps no further commands")
        if sum(entry.is_running for entry in state.own_kept.values()) >= KEPT_PER_SESSION_MAX:
            raise ToolFailed(f"{KEPT_PER_SESSION_MAX} kept commands of this session already run; end one with jobs")
        if sum(not entry.running.has_ended for entry in self._kept.values()) >= KEPT_PER_SERVER_MAX:
            raise ToolFailed(f"{KEPT_PER_SERVER_MAX} kept commands already run on this server; end one first")

    async def keep(self, workspace: Workspace, state: LaneState, run_id: str, running: RunningCommand) -> str:
        self.check_room(state)
        command = new_kept(self._door.ids.new("k"), running.command, run_id, self._door.clock.now_ms())
        self._drop_oldest()
        entry = self._kept[command.id] = _Kept(state.session.id, running)
        state.own_kept[command.id] = command
        running.keep(partial(self._publish, state, command.id))
        entry.watch = asyncio.create_task(self._watch(workspace, state, command.id, entry))
        try:
            await self._record(state)
        except StoreUnavailable as error:
            await self._end([entry])
            raise ToolFailed(f"the command was ended, since it could not be recorded: {error}") from None
        except BaseException:  # the Run is being stopped
            await self._end([entry])
            raise
        return command.id

    def running(self, state: LaneState, id_: str) -> RunningCommand:
        """Return the process of a command. ToolFailed if this process does not have it."""
        command = next((entry for entry in state.kept_commands if entry.id == id_), None)
        if command is None:
            listed = ", ".join(entry.id for entry in state.kept_commands) or "none"
            raise ToolFailed(f"kept command {id_!r} not found; kept commands of this session: {listed}")
        if (entry := self._kept.get(id_)) is None:
            raise ToolFailed(f"{id_} {state_text(command)}; its output is no longer available")
        return entry.running

    async def end_for_agent(self, state: LaneState, id_: str) -> RunningCommand:
        running = self.running(state, id_)
        await self._end([self._kept[id_]])
        return running

    # --- the life of a command -----------------------------------------------------------------------------------

    async def _watch(self, workspace: Workspace, state: LaneState, id_: str, entry: _Kept) -> None:
        await entry.running.wait_ended()
        now = self._door.clock.now_ms()
        ended = replace(state.own_kept[id_], state=entry.ended_as, exit_code=entry.running.exit_code, ended_at=now)
        state.own_kept[id_] = ended
        log.info("session %s: kept command %s %s", entry.session_id, id_, state_text(ended))
        delays_s = backoff_s(RETRY_S, RETRY_S_MAX)
        with workspace.in_use():  # until it is written, or the Lane could be loaded again without it
            while not state.deleted:
                try:
                    await self._record(state)
                    break
                except StoreUnavailable as error:
                    log.warning("the end of kept command %s could not be written yet: %s", id_, error)
                except KedgeError as error:  # the session was deleted meanwhile
                    log.warning("the end of kept command %s was not written: %s", id_, error)
                    break
                await asyncio.sleep(next(delays_s))
        self._workspaces.sweep()

    async def _record(self, state: LaneState) -> None:
        async def plan(tx: Append) -> None:
            tx.session = replace(tx.session, kept_commands=state.kept_commands)

        await self._door.write(state, plan)
        # The list has a limit. Not compared with what was written: another command may have been kept meanwhile.
        for id_ in state.own_kept.keys() - {entry.id for entry in state.kept_commands}:
            del state.own_kept[id_]

    async def _end(self, commands: list[_Kept], ended_as: KeptState = "ended") -> None:
        """End commands, and wait until that is recorded. Completes even if the current task is cancelled."""
        for entry in commands:
            if not entry.running.has_ended:
                entry.ended_as = ended_as
        ending = [asyncio.ensure_future(entry.running.end(GRACE_S)) for entry in commands if not entry.running.is_gone]
        await wait_uncancelled(ending)
        for entry in commands:
            if entry.running.survivors:
                pids = ", ".join(map(str, entry.running.survivors))
                log.error("session %s: processes of a kept command could not be ended: %s", entry.session_id, pids)
        if watches := [entry.watch for entry in commands if not entry.watch.done()]:
            await asyncio.wait(watches, timeout=LAST_WRITE_S)

    def _drop_oldest(self) -> None:
        ended = [id_ for id_, entry in self._kept.items() if entry.watch.done()]
        for id_ in ended[: max(len(self._kept) + 1 - KEPT_PER_SERVER_MAX, 0)]:
            del self._kept[id_]

    def _publish(self, state: LaneState, id_: str, text: str) -> None:
        feed, session_id = state.feed, state.session.id
        feed.send_transient(session_id, feed.encoder.kept_output(session_id, id_, without_surrogates(text)))

    async def _command(self, workspace: Workspace, session_id: str, id_: str) -> KeptCommand:
        state = await self._workspaces.lane(workspace, session_id)
        for command in state.kept_commands:
            if command.id == id_:
                return command
        raise KeptCommandNotFound(f"Kept command {id_} not found in session {session_id}. List them with: kedge jobs")


class SessionKept(Struct, frozen=True):
    """The `KeptCommands` of a tool call."""

    registry: KeptRegistry
    workspace: Workspace
    state: LaneState
    run_id: str

    def check_room(self) -> None:
        self.registry.check_room(self.state)

    async def keep(self, running: RunningCommand) -> str:
        return await self.registry.keep(self.workspace, self.state, self.run_id, running)

    def list(self) -> tuple[KeptCommand, ...]:
        return self.state.kept_commands

    def get(self, id_: str) -> RunningCommand:
        return self.registry.running(self.state, id_)

    async def end_one(self, id_: str) -> RunningCommand:
        return await self.registry.end_for_agent(self.state, id_)
