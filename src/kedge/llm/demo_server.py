"""The process behind `kedge.llm.demo`: a small language model served to this machine only. It imports nothing of kedge.

    python -I demo_server.py MODEL_FILE CONTEXT_TOKENS

The first line of its input is the key that it asks for; the one line it writes is its address, once it is ready, or
"failed: why". It ends when its input does: with whoever started it, in whatever way that one ends.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import Any

#: A model this small gains nothing from more.
THREADS_MAX = 4
#: Always the likeliest word, since a small model wanders off, with a price on repeating itself, since it loves to.
TEMPERATURE = 0.0
REPEAT_PENALTY = 1.1


def main(model_file: str, context_tokens: str) -> None:
    key = sys.stdin.readline().strip()
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    try:
        server = _started(model_file, int(context_tokens), key)
    except Exception as error:
        print(f"failed: {error}", flush=True)
        return
    print(server.listening_address, flush=True)
    threading.Event().wait()


def _started(model_file: str, context_tokens: int, key: str) -> Any:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = model_file
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.offline = True
    params.ui = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
    params.sampling.temp = TEMPERATURE
    params.sampling.penalty_repeat = REPEAT_PENALTY
    return xllamacpp.Server(params)


def _threads() -> int:
    """Half of what may be used, which can be less than the machine has. The threads wait for each other in a loop, so
    that it crawls as soon as one of them has to share."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed // 2, THREADS_MAX))


def _end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
