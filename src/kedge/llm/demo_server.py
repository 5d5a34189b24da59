"""The server process of `kedge.llm.demo`, reachable from this machine only. It imports nothing of kedge.

    python -I demo_server.py MODEL_FILE CONTEXT_TOKENS

The first line of its input is the API key. It prints one line: its address when it is ready, or "failed: REASON". It
exits at the end of its input, so that it never outlives its parent.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import Any

#: So small a model does not benefit from more.
THREADS_MAX = 4
#: Always the likeliest token, since a small model digresses, with a penalty for repetition.
TEMPERATURE = 0.0
REPEAT_PENALTY = 1.1


def main(model_file: str, context_tokens: str) -> None:
    key = sys.stdin.readline().strip()
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    try:
        server = _start(model_file, int(context_tokens), key)
    except Exception as error:
        print(f"failed: {error}", flush=True)
        return
    print(server.listening_address, flush=True)
    threading.Event().wait()


def _start(model_file: str, context_tokens: int, key: str) -> Any:
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
    """Return half of the usable CPUs. The threads spin while they wait for each other: the model is slow if one shares
    its CPU."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed // 2, THREADS_MAX))


def _exit_at_end_of_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
