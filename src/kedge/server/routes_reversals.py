"""Routes of undo, redo and rewind."""

from __future__ import annotations

from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.server.asgi import HttpRequest, Route, route
from kedge.wire import reversal_models as m


class ReversalRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def undo(self, request: HttpRequest) -> m.UndoReply:
        body: m.UndoRun = request.body
        workspace, user = self._workspace(request), request.asker.user
        run_id, files = await self._engine.undo.undo(workspace, request.path["sid"], body.run_id, user)
        return m.UndoReply(run_id=run_id, files=files)

    async def redo(self, request: HttpRequest) -> m.UndoReply:
        workspace, user = self._workspace(request), request.asker.user
        run_id, files = await self._engine.undo.redo(workspace, request.path["sid"], user)
        return m.UndoReply(run_id=run_id, files=files)

    async def rewind(self, request: HttpRequest) -> m.RewindReply:
        body: m.RewindSession = request.body
        workspace, user = self._workspace(request), request.asker.user
        rewound = await self._engine.rewind.rewind(workspace, request.path["sid"], body.message_id, body.scope, user)
        return m.RewindReply(
            prompt=rewound.prompt.typed,
            attachments=[
                m.RewoundFile(file_path=file.file_path, mime_type=file.mime_type) for file in rewound.prompt.attachments
            ],
            restored=rewound.restored,
            spared=rewound.spared,
            fork_session_id=rewound.fork.id if rewound.fork else "",
        )

    def _workspace(self, request: HttpRequest) -> Workspace:
        return self._engine.workspaces.get(request.path["id"])

    def routes(self) -> list[Route]:
        session = "/workspaces/{id}/sessions/{sid}"
        return [
            route(
                "POST",
                f"{session}/undo",
                self.undo,
                "Revert the file changes of a run",
                body=m.UndoRun,
                reply=m.UndoReply,
            ),
            route("POST", f"{session}/redo", self.redo, "Take back the last undo or rewind", reply=m.UndoReply),
            route(
                "POST",
                f"{session}/rewind",
                self.rewind,
                "Return to an earlier prompt",
                body=m.RewindSession,
                reply=m.RewindReply,
            ),
        ]
