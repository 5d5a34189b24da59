"""The figures to reach: the best of other agent servers, measured on a 2-core machine with the same scripted model.

Those without a best of the others are our own: what a Step, a tool call and the end of a process tree may cost."""

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
    "a Step, over the model's time": Figure(10),
    "a Step with 200 messages of history, over the model's time": Figure(20),
    "CPU per Step and message of history, growth": Figure(3),
    "1,000 tool calls": Figure(5),
    "memory, after 1,000 tool calls": Figure(65),
    "bash true, from the model's call to its result": Figure(25),
    "warden, until a process runs": Figure(15),
    "cancel to dead, a tree that obeys": Figure(25),
    "cancel to dead, a stubborn tree, beyond its grace": Figure(100),
}
