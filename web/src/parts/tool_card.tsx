/** A tool call: what it does, its state, its live output and its result. */

import type { PartBody, RunBody } from "../api/types";
import { sessionPath } from "../state/route";
import type { Workspace } from "../state/workspace";
import type { Conversation, ConversationEntry } from "../view/conversation";
import { resultNotes } from "../view/result_notes";
import { visibleLine } from "../view/visible_text";
import { Diff } from "./diff";
import { useFold } from "./folds";
import { duration, oneLine, plural } from "./format";
import { Link } from "./link";

/** Folded output of a running call and of a finished one. Lines. */
const LIVE_LINES = 8;
const DONE_LINES = 6;
/** Unfolded output. Characters; more takes too long to lay out. */
const OUTPUT_CHARS_MAX = 200_000;
/** A folded line. Characters. */
const LINE_CHARS_MAX = 2_000;
const IMAGE = /^data:image\/(?:png|jpeg|gif|webp);base64,/;

type CallState = "running" | "waiting" | "done" | "failed" | "stopped";
const STATE_TEXTS: Record<CallState, string> = {
    running: "running",
    waiting: "waits for you",
    done: "done",
    failed: "failed",
    stopped: "stopped",
};

interface CardProps {
    workspace: Workspace;
    conversation: Conversation;
    entry: ConversationEntry;
    part: PartBody;
}

export function ToolCard({ workspace, conversation, entry, part }: CardProps) {
    const view = workspace.view;
    const data = part.data;
    const callId = String(data["id"]);
    const runId = entry.body.run_id;
    const display = String(data["display"] || "compact");
    const result = conversation.resultOf(entry, callId);
    const run = view.run(runId);
    const isLive = run !== null && run.state !== "ended";
    const key = `${entry.body.id}:${callId}`;
    const [isOpen, toggle] = useFold(key, false);
    const title = oneLine(String(data["title"] || data["name"]), 400);
    const { state, summary } = stateOf(view.isWaiting(runId, callId), isLive, result);
    const child = display === "agent" ? childOf(workspace, conversation, entry, part) : null;
    const metadata = jsonObject(String(result?.data["metadata"] ?? ""));
    const diff = typeof metadata["diff"] === "string" ? metadata["diff"] : "";
    const command = display === "command" ? fullCommand(data) : "";
    const content = String(result?.data["content"] ?? "");
    const isShown = isOpen || (!diff && (display !== "compact" || state === "failed"));
    const live = result ? "" : child ? view.progressOf(child.run_id) : conversation.progressOf(entry, callId);
    const images = Array.isArray(result?.data["images"]) ? result.data["images"].filter(isImage) : [];
    const [name, details] = splitTitle(title);
    return (
        <div class={`card card-${state}`} data-call={callId}>
            <button type="button" class="card-head" aria-expanded={isOpen} onClick={toggle}>
                <span class={`mark mark-${state}`} role="img" aria-label={STATE_TEXTS[state]} />
                <span class="card-title">
                    <b>{name}</b> {details}
                </span>
                <span class={`card-summary summary-${state}`}>{summary || (child ? childState(child) : "")}</span>
            </button>
            {command.includes("\n") && <Output text={command} isOpen={isOpen} linesMax={DONE_LINES} isCode />}
            {child && (
                <Link class="card-child" to={sessionPath(workspace.id, child.session_id)}>
                    Open the session of this agent ({childState(child)})
                </Link>
            )}
            {diff && <Diff diff={diff} foldKey={key} />}
            {result && isShown && !(diff && !isOpen) && <Output text={content} isOpen={isOpen} linesMax={DONE_LINES} />}
            {resultNotes(metadata).map((note, index) => (
                <div key={index} class={`card-note card-note-${note.kind}`}>
                    {note.kind === "hook" ? "hook: " : ""}
                    {visibleLine(note.text)}
                </div>
            ))}
            {!result && isLive && live.trim() !== title && (
                <Output text={live} isOpen={isOpen} linesMax={LIVE_LINES} isFromEnd />
            )}
            {isOpen && display !== "command" && <Output text={prettyInput(data)} isOpen linesMax={DONE_LINES} isCode />}
            {images.map((source, index) => (
                <img key={index} class="card-image" src={source} alt={`Image of ${title}`} />
            ))}
        </div>
    );
}

/** Lines of output: the first or the last ones, or all of them. */
export function Output(props: {
    text: string;
    isOpen: boolean;
    linesMax: number;
    isFromEnd?: boolean;
    isCode?: boolean;
}) {
    const text = props.text.replace(/^\n+|\s+$/g, "");
    if (!text) return null;
    const { shown, hidden } = folded(text, props.isOpen, props.linesMax, props.isFromEnd ?? false);
    const note = hidden > 0 && <div class="tool-output-more">… {plural(hidden, "more line")}</div>;
    return (
        <div class={`tool-output${props.isCode ? " tool-output-code" : ""}${props.isOpen ? " is-open" : ""}`}>
            {props.isFromEnd && note}
            <pre tabIndex={props.isOpen ? 0 : -1}>{shown}</pre>
            {!props.isFromEnd && note}
        </div>
    );
}

export function folded(
    text: string,
    isOpen: boolean,
    linesMax: number,
    isFromEnd: boolean,
): { shown: string; hidden: number } {
    if (isOpen) {
        const shown = isFromEnd ? text.slice(-OUTPUT_CHARS_MAX) : text.slice(0, OUTPUT_CHARS_MAX);
        const rest = text.length - shown.length;
        return { shown, hidden: rest > 0 ? Math.max(1, count(text) - count(shown)) : 0 };
    }
    const lines = text.split("\n");
    // A note about a single hidden line would take as much room as the line.
    const max = lines.length <= linesMax + 1 ? linesMax + 1 : linesMax;
    const kept = isFromEnd ? lines.slice(-max) : lines.slice(0, max);
    const shown = kept.map((line) => (line.length > LINE_CHARS_MAX ? `${line.slice(0, LINE_CHARS_MAX)}…` : line));
    return { shown: shown.join("\n"), hidden: lines.length - kept.length };
}

function count(text: string): number {
    let lines = 1;
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
    return lines;
}

function stateOf(isWaiting: boolean, isLive: boolean, result: PartBody | null): { state: CallState; summary: string } {
    if (result) {
        const summary = oneLine(String(result.data["summary"] ?? ""), 200);
        const end = result.data["end"];
        if (end === "cut_off" || end === "not_run") return { state: "stopped", summary };
        if (result.data["is_error"]) return { state: "failed", summary: summary || "failed" };
        const code = jsonObject(String(result.data["metadata"] ?? ""))["exit_code"];
        return { state: typeof code === "number" && code !== 0 ? "failed" : "done", summary };
    }
    if (isWaiting) return { state: "waiting", summary: STATE_TEXTS.waiting };
    return isLive ? { state: "running", summary: "" } : { state: "stopped", summary: "no result" };
}

/** Return the child Run that this call started: the one with its prompt; of several, by their order. */
function childOf(
    workspace: Workspace,
    conversation: Conversation,
    entry: ConversationEntry,
    part: PartBody,
): RunBody | null {
    const prompt = promptOf(part);
    const same = workspace.view.children(entry.body.run_id).filter((child) => child.prompt === prompt);
    if (same.length <= 1) return same[0] ?? null;
    let index = 0;
    for (const other of conversation.ordered()) {
        if (other.body.run_id !== entry.body.run_id) continue;
        for (const call of other.body.parts) {
            if (call === part) return same[index] ?? null;
            if (call.type === "tool_call" && call.data["display"] === "agent" && promptOf(call) === prompt) index++;
        }
    }
    return null;
}

function childState(child: RunBody): string {
    const steps = plural(child.steps, "step");
    if (child.state === "queued") return "queued";
    if (child.state !== "ended") return child.steps > 0 ? `step ${child.steps}` : "starting";
    if (child.outcome !== "completed") return `${child.outcome}, ${steps}`;
    if (!child.started_at || !child.ended_at) return steps;
    return `${steps}, ${duration(child.ended_at - child.started_at)}`;
}

function promptOf(part: PartBody): string {
    return String(jsonObject(String(part.data["input"] ?? ""))["prompt"] ?? "");
}

function fullCommand(data: PartBody["data"]): string {
    const command = jsonObject(String(data["input"] ?? ""))["command"];
    return typeof command === "string" ? command : "";
}

function prettyInput(data: PartBody["data"]): string {
    const input = String(data["input"] ?? "");
    const object = jsonObject(input);
    return Object.keys(object).length > 0 ? JSON.stringify(object, null, 2) : input;
}

/** Return the object in a JSON text of a model, which may be malformed. */
export function jsonObject(text: string): Record<string, unknown> {
    try {
        const value: unknown = JSON.parse(text);
        return typeof value === "object" && value !== null && !Array.isArray(value)
            ? (value as Record<string, unknown>)
            : {};
    } catch {
        return {};
    }
}

function splitTitle(title: string): [name: string, details: string] {
    const space = title.indexOf(" ");
    return space < 0 ? [title, ""] : [title.slice(0, space), title.slice(space + 1)];
}

export function isImage(source: unknown): source is string {
    return typeof source === "string" && IMAGE.test(source);
}
