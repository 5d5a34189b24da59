"""The type information of msgspec, built before several threads need it.

msgspec describes a Struct type when it is first decoded. While it does that, another thread can find the description
half-built, and the process dies of a segmentation fault (seen with msgspec 0.22). So a process that decodes in several
threads builds the descriptions first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

_lock = threading.Lock()
_built: set[type[Struct]] = set()


def build_struct_types() -> None:
    """Build the descriptions of kedge's Struct types that are defined so far. Those of the server take 20 ms."""
    with _lock:
        for kind in {kind for kind in _subclasses(Struct) if kind.__module__.startswith("kedge.")} - _built:
            # It is never decoded: msgspec does not support it, or its module failed to load.
            with suppress(TypeError, NameError):
                msgspec.json.Decoder(kind)
            _built.add(kind)


def _subclasses(kind: type[Struct]) -> Iterator[type[Struct]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
