"""The text of kept commands, for both front ends."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.core.kept_commands import exit_text
from kedge.wire.job_models import JobBody


def job_state(job: JobBody) -> str:
    """Return "running", "exit code 1", "signal 9", "ended", "ended with the server"."""
    match job.state:
        case "exited":
            return "ended" if job.exit_code is None else exit_text(job.exit_code)
        case "server_stopped":
            return "ended with the server"
    return job.state


def runtime(job: JobBody, now_ms: int) -> str:
    """Return how long a job has run, in the largest unit that fits; empty if that is not known."""
    end = now_ms if job.state == "running" else job.ended_at
    if end is None:
        return ""
    seconds = max(0, (end - job.started_at) // 1000)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def jobs_remain(jobs: Sequence[JobBody]) -> str:
    """Return what a cancel did not end."""
    if len(jobs) == 1:
        return f"1 kept command still runs; end it with: kedge jobs end {jobs[0].id}"
    return f"{len(jobs)} kept commands still run; list them with: kedge jobs"
