"""The targets, and the best results of other agent servers on a 2-core machine with the same scripted model.

Targets without such a result limit the cost of a Step, a tool call and the end of a process tree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    target: float
    #: The best result of another server.
    best: str = ""
    at_least: bool = False


FIGURES: dict[str, Figure] = {
    "start to first healthy reply": Figure(0.6, "0.19 (Codex), 1.0 (Kimi)"),
    "memory, idle": Figure(50, "64 (Kimi)"),
    "memory, after one prompt": Figure(65, "131 (agno)"),
    "POST to first delta, excluding model time": Figure(8, "20 (Kimi)"),
    "CPU per 1,000 deltas, 1 reader": Figure(0.08, "0.16 (Codex)"),
    "CPU per 1,000 delivered, 50 readers": Figure(0.006, "0.018 (opencode)"),
    "bytes per model delta": Figure(120, "183 (OpenHands)"),
    "50 concurrent sessions, 1.0 s of model time each": Figure(1.3, "2.7 (OpenHands)"),
    "cancel to run_complete at a client": Figure(3, "4.5 (Kimi)"),
    "cancel right after the accept, failures": Figure(0, "0"),
    "concurrent prompt and cancel, failures": Figure(0, "0"),
    "stream dropped mid-run and resumed, words lost": Figure(0, "0 (agno)"),
    "A active, B queued, cancel, then C, failures": Figure(0, "0 (Codex)"),
    "kill -9 mid-stream, words lost before the last 0.25 s": Figure(0, "all 40 words"),
    "Step, excluding model time": Figure(10),
    "Step with 200 messages of history, excluding model time": Figure(20),
    "CPU per Step and history message, growth": Figure(3),
    "1,000 tool calls": Figure(5),
    "memory, after 1,000 tool calls": Figure(65),
    "web page, bytes of the first view": Figure(150),
    "web page, longest frame of 5,000 deltas": Figure(50),
    "bash true, from tool call to result": Figure(25),
    "warden, time to start a process": Figure(15),
    "cancel to dead process tree": Figure(25),
    "cancel to dead process tree that ignores SIGTERM, excluding grace": Figure(100),
    # The goal is 1; the rest is for the noise of the machine.
    "10 unused MCP servers, start to first healthy reply": Figure(1.1),
    "10 unused MCP servers, memory after 20 prompts": Figure(1.02),
    "10 unused MCP servers, POST to first delta": Figure(1.1),
}
