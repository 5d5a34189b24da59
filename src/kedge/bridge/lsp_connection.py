"""The connection to one language server: its process, its messages within limits, its first exchange."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.client import JsonRPCClient
from pygls.exceptions import JsonRpcException
from pygls.io_ import run_async
from pygls.protocol import JsonRPCNotification, JsonRPCProtocol, JsonRPCRequestMessage, default_converter
from pygls.uris import from_fs_path

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.lsp_messages import ServerSpec

#: Size of a message of a server. References in a large project take some megabytes. Bytes.
RECEIVED_BYTES_MAX = 16 * 1024 * 1024
#: Bytes that wait for a server that does not read. More than all documents that one step writes.
UNSENT_BYTES_MAX = 32 * 1024 * 1024
#: Requests that a server has not answered. Items.
WAITING_MAX = 100
#: The time that a server has to end after it was asked to. Seconds.
SHUTDOWN_S = 0.5

#: What a server may ask of us. Everything else is refused, or ignored without decoding it.
_SERVED = frozenset(
    {
        types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS,
        types.WORKSPACE_CONFIGURATION,
        types.WORKSPACE_WORKSPACE_FOLDERS,
        types.WORKSPACE_APPLY_EDIT,
        types.CLIENT_REGISTER_CAPABILITY,
        types.CLIENT_UNREGISTER_CAPABILITY,
        types.WINDOW_WORK_DONE_PROGRESS_CREATE,
        types.WINDOW_SHOW_MESSAGE_REQUEST,
    }
)

logging.getLogger("pygls").setLevel(logging.CRITICAL)  # it logs every message; there is no reader


_converter = default_converter()  # type: ignore[no-untyped-call]


class _Protocol(JsonRPCProtocol):
    """JSON-RPC with the types of the Language Server Protocol, and none of the built-in handlers of a server."""

    def get_message_type(self, method: str) -> Any:
        return types.METHOD_TO_TYPES.get(method, (None,))[0]

    def structure_message(self, data: dict[str, Any]) -> Any:
        if "jsonrpc" not in data:
            return data
        method = data.get("method")
        if isinstance(method, str) and method not in _SERVED:
            if "id" in data:
                return JsonRPCRequestMessage(data["id"], method, "2.0", None)
            return JsonRPCNotification(method, "2.0", None)
        if method is None and "error" not in data:
            message = super().structure_message({**data, "result": None})
            message.result = data.get("result")  # plain data: the request decodes the part that it needs
            return message
        return super().structure_message(data)


class _Reader:
    """Reads messages of a server, up to a size."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.readline = reader.readline
        self._reader = reader

    async def readexactly(self, n: int) -> bytes:
        if n > RECEIVED_BYTES_MAX:
            raise CallFailed(f"it sent a message of {n} bytes, larger than the limit")
        return await self._reader.readexactly(n)


class _Writer:
    """Writes messages to a server. Nothing waits for one that does not read: its bytes are bounded instead."""

    def __init__(self, writer: asyncio.StreamWriter, lose: Callable[[str], None]) -> None:
        self._writer = writer
        self._lose = lose
        self.close = writer.close

    def write(self, data: bytes) -> None:
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._lose("it does not read")
        elif not self._writer.is_closing():
            self._writer.write(data)


class Connection:
    """The process of a language server and the exchange with it."""

    def __init__(self, spec: ServerSpec, root: str, on_lost: Callable[[str], None]) -> None:
        self._spec = spec
        self._root = root
        self._on_lost = on_lost
        self._client = JsonRPCClient(_Protocol)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._stopped = threading.Event()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._is_closing = False
        self.on_diagnostics: Callable[[types.PublishDiagnosticsParams], None] = lambda params: None
        #: Findings are requested; otherwise the server sends them.
        self.has_pull = False
        #: Why the connection has ended; empty: it has not.
        self.lost = ""

    def uri(self, path: str) -> str:
        return from_fs_path(path) or ""

    async def start(self) -> None:
        """Start the process and introduce ourselves. CallFailed or OSError if that fails."""
        self._serve_requests()
        self._process = await asyncio.create_subprocess_exec(
            *self._spec.argv,
            cwd=self._root,
            env=_environment(self._spec),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._client.protocol.set_writer(_Writer(self._process.stdin, self._lose))
        self._reading = asyncio.get_running_loop().create_task(self._read(_Reader(self._process.stdout)))
        result = await self._answer(types.INITIALIZE, _introduction(self._spec, self._root))
        capabilities = result.get("capabilities") if isinstance(result, dict) else None
        if not isinstance(capabilities, dict):
            raise CallFailed("its first answer is not valid")
        self.has_pull = capabilities.get("diagnosticProvider") is not None
        self.notify(types.INITIALIZED, types.InitializedParams())

    async def request(self, method: str, params: Any) -> Any:
        """Return the answer in its type. The caller sets a time limit; if cancelled, the server is informed."""
        answer = {"id": 0, "jsonrpc": "2.0", "result": await self._answer(method, params)}
        try:
            return _converter.structure(answer, types.METHOD_TO_TYPES[method][1]).result
        except Exception as error:  # cattrs raises groups of any errors
            raise CallFailed(f"{self._spec.name} sent an answer that is not valid ({type(error).__name__})") from None

    async def _answer(self, method: str, params: Any) -> Any:
        if self.lost:
            raise CallFailed(self.lost)
        if len(self._waiting) >= WAITING_MAX:
            raise CallFailed("too many requests wait for the language server")
        id_ = f"{method} {len(self._waiting)} {asyncio.get_running_loop().time()}"
        answer = self._client.protocol.send_request_async(method, params, msg_id=id_)
        self._waiting.add(answer)
        try:
            return await answer
        except JsonRpcException as error:
            if is_method_missing(error):
                raise
            raise CallFailed(f"{self._spec.name}: {str(error)[:300]}") from None
        except asyncio.CancelledError:
            if self.lost:
                raise CallFailed(self.lost) from None
            self.notify(types.CANCEL_REQUEST, types.CancelParams(id=id_))
            raise
        finally:
            self._waiting.discard(answer)

    def notify(self, method: str, params: Any) -> None:
        if not self.lost:
            self._client.protocol.notify(method, params)

    async def close(self) -> None:
        """Ask the server to end, and end it with its process group."""
        self._is_closing = True
        process, reading = self._process, self._reading
        if process is not None and process.returncode is None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SHUTDOWN_S):
                    await self._answer(types.SHUTDOWN, None)
                    self.notify(types.EXIT, None)
                    await process.wait()
        self._lose("it was ended")
        self._kill()
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, reader: _Reader) -> None:
        why = "it ended unexpectedly"
        try:
            await run_async(self._stopped, reader, self._client.protocol)
        except CallFailed as error:
            why = str(error)
        except (ValueError, OSError, asyncio.IncompleteReadError):
            why = "it sent something else than messages, or ended"
        finally:
            self._lose(why)
            self._kill()

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = why
        for answer in list(self._waiting):
            answer.cancel()
        if not self._is_closing:
            self._on_lost(why)
            self._kill()

    def _kill(self) -> None:
        """End the whole group: servers start helpers. What leaves the group ends with the bridge."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _serve_requests(self) -> None:
        """Answer what servers ask: settings (none), folders (one), edits (refused: only kedge's tools write)."""
        feature = self._client.feature
        feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self.on_diagnostics(params))
        feature(types.WORKSPACE_CONFIGURATION)(lambda params: [None] * len(params.items))
        feature(types.WORKSPACE_WORKSPACE_FOLDERS)(lambda params: [_folder(self._root)])
        feature(types.WORKSPACE_APPLY_EDIT)(lambda params: types.ApplyWorkspaceEditResult(applied=False))
        for method in (
            types.CLIENT_REGISTER_CAPABILITY,
            types.CLIENT_UNREGISTER_CAPABILITY,
            types.WINDOW_WORK_DONE_PROGRESS_CREATE,
            types.WINDOW_SHOW_MESSAGE_REQUEST,
        ):
            feature(method)(lambda params: None)


def is_method_missing(error: BaseException) -> bool:
    return isinstance(error, JsonRpcException) and error.code == types.ErrorCodes.MethodNotFound


def _environment(spec: ServerSpec) -> dict[str, str]:
    if not spec.is_confined:
        return dict(os.environ)
    caches = Path(tempfile.gettempdir())
    names = {"XDG_CACHE_HOME": "cache", "GOCACHE": "go-build", "CARGO_TARGET_DIR": "target", "npm_config_cache": "npm"}
    return {**os.environ, **{name: str(caches / directory) for name, directory in names.items()}}


def _folder(root: str) -> types.WorkspaceFolder:
    return types.WorkspaceFolder(uri=from_fs_path(root) or "", name=os.path.basename(root) or root)


def _introduction(spec: ServerSpec, root: str) -> types.InitializeParams:
    return types.InitializeParams(
        process_id=os.getpid(),
        client_info=types.ClientInfo(name="kedge"),
        root_path=root,
        root_uri=from_fs_path(root),
        workspace_folders=[_folder(root)],
        initialization_options=spec.options or None,
        capabilities=types.ClientCapabilities(
            general=types.GeneralClientCapabilities(position_encodings=[types.PositionEncodingKind.Utf16]),
            workspace=types.WorkspaceClientCapabilities(
                configuration=True,
                workspace_folders=True,
                did_change_watched_files=types.DidChangeWatchedFilesClientCapabilities(),
                symbol=types.WorkspaceSymbolClientCapabilities(),
                workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=True),
            ),
            text_document=types.TextDocumentClientCapabilities(
                synchronization=types.TextDocumentSyncClientCapabilities(did_save=True),
                publish_diagnostics=types.PublishDiagnosticsClientCapabilities(version_support=True),
                diagnostic=types.DiagnosticClientCapabilities(),
                definition=types.DefinitionClientCapabilities(link_support=True),
                references=types.ReferenceClientCapabilities(),
                hover=types.HoverClientCapabilities(
                    content_format=[types.MarkupKind.PlainText, types.MarkupKind.Markdown]
                ),
                document_symbol=types.DocumentSymbolClientCapabilities(hierarchical_document_symbol_support=True),
                rename=types.RenameClientCapabilities(),
            ),
        ),
    )
