"""The figures to reach, from PEERS.md: measured there on a 2-core machine with the same scripted model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    reach: float
    #: The best of the other servers.
    best: str = ""
    at_least: bool = False


FIGURES: dict[str, Figure] = {
    "start to first healthy reply": Figure(0.6, "0.19 (Codex), 1.0 (Kimi)"),
    "memory, idle": Figure(50, "64 (Kimi)"),
    "memory, after one prompt": Figure(65, "131 (agno)"),
    "POST to first delta, over the model's time": Figure(8, "20 (Kimi)"),
    "CPU per 1,000 deltas, 1 reader": Figure(0.08, "0.16 (Codex)"),
    "CPU per 1,000 delivered, 50 readers": Figure(0.006, "0.018 (opencode)"),
    "bytes per model delta": Figure(120, "183 (OpenHands)"),
    "50 sessions at once, 1.0 s of model each": Figure(1.3, "2.7 (OpenHands)"),
    "cancel to end seen by a client": Figure(3, "4.5 (Kimi)"),
    "cancel right after the accept, wrong": Figure(0, "0"),
    "prompt and cancel together, wrong": Figure(0, "0"),
    "stream dropped in mid-run and resumed, words lost": Figure(0, "0 (agno)"),
    "A active, B queued, cancel, C at once, wrong": Figure(0, "0 (Codex)"),
    "kill -9 in mid-stream, words lost beyond the last 0.25 s": Figure(0, "all 40 words"),
}
