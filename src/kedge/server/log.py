"""The log of the server, and everything else that it writes to standard output and error.

A pipe or a terminal whose reader does not read (a supervisor that hangs, Ctrl-S) blocks every write. So a thread does
the writing, and text that does not fit into its queue is dropped and counted.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import select
import sys
import threading
from contextlib import suppress

from kedge import paths
from kedge.core.untrusted_text import visible

#: Text that waits for the thread: some thousand log entries. Bytes.
QUEUE_BYTES_MAX = 1024 * 1024
#: The time that a shutdown waits for the thread, for each stream. Seconds.
FLUSH_S_MAX = 1.0
#: A larger `server.log` loses its oldest entries, so that a server may run for ever. Bytes.
LOG_BYTES_MAX = 5 * 1024 * 1024
#: The part that it keeps: half, so that it is copied once in thousands of entries. Bytes.
LOG_BYTES_KEPT = LOG_BYTES_MAX // 2


class LogFormatter(logging.Formatter):
    """Indents all but the first line, so that a path or a provider's error cannot forge a log entry."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), mark_ends=False).replace("\n", "\n    ")


class BackgroundStream(io.TextIOBase):
    """A text stream whose `write` never blocks. A thread writes to the descriptor.

    With `trims`, the descriptor is a file that loses its oldest lines when it is too large."""

    def __init__(self, descriptor: int, *, trims: bool = False) -> None:
        self._descriptor = descriptor
        self._trims = trims
        #: Its lock is reentrant: a collected object may warn while the lock is held.
        self._changed = threading.Condition()
        self._queue: list[bytes] = []
        #: Bytes that are queued or being written, and lines that were dropped since the last report.
        self._bytes = 0
        self._dropped = 0
        if trims:
            with suppress(OSError):
                self._trim()
        # At once: a start waits for the thread, and the first writer may be the event loop. A daemon: a process whose
        # write is stuck must be able to exit.
        threading.Thread(target=self._write_queue, name="kedge-log", daemon=True).start()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._bytes + len(data) > QUEUE_BYTES_MAX:
                self._dropped += data.count(b"\n")
            else:
                self._queue.append(data)
                self._bytes += len(data)
                self._changed.notify_all()
        return len(text)

    def wait_written(self, limit_s: float) -> None:
        """Wait until everything is written, or for the time given."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, limit_s)

    # --- the thread ---

    def _write_queue(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                batch = b"".join(self._queue)
                self._queue.clear()
                dropped, self._dropped = self._dropped, 0
            report = f"kedge: {dropped} log lines were dropped, since they could not be written\n" if dropped else ""
            try:
                self._write_all(batch + report.encode())
                if self._trims:
                    self._trim()
            except OSError:  # the reader is gone, or the disk is full: reported with the next text
                dropped += batch.count(b"\n")
                with self._changed:
                    self._dropped += dropped
            with self._changed:
                self._bytes -= len(batch)
                self._changed.notify_all()

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process has made the terminal or the pipe non-blocking
                select.select((), (self._descriptor,), ())

    def _trim(self) -> None:
        if os.fstat(self._descriptor).st_size <= LOG_BYTES_MAX:
            return
        # The descriptor is open for writing only.
        with open(f"/proc/self/fd/{self._descriptor}", "rb") as file:
            file.seek(-LOG_BYTES_KEPT, os.SEEK_END)
            newest = file.read(LOG_BYTES_KEPT).partition(b"\n")[2]
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._write_all(newest)


def start_log() -> None:
    """Log to standard error, and let threads do all writing to standard output and error from here on."""
    if sys.stdout is not None:  # None: closed before the process started
        sys.stdout = BackgroundStream(sys.stdout.fileno())
    if sys.stderr is not None:
        faulthandler.enable(sys.stderr.fileno())  # a crash of a library writes the stacks of all threads
        sys.stderr = BackgroundStream(sys.stderr.fileno(), trims=_is_server_log(sys.stderr.fileno()))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # httpx2 logs every model request, and uvicorn the start and the shutdown.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def flush_log() -> None:
    """Wait for the threads, within limits. The streams are not restored: the exit of the process may write to them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, BackgroundStream):
            stream.wait_written(FLUSH_S_MAX)


def _is_server_log(descriptor: int) -> bool:
    """Return whether this is the file that a client opened for the server. Files of the operator are not trimmed."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(paths.server_log()))
    except OSError:
        return False
