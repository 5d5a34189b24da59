/** The text of approvals and questions, with nothing hidden. A port of `client/view/ask_text.py`. */

import type { PermissionRequest, QuestionBatch, QuestionBody, QuestionResponse } from "../api/types";
import { byAuthor } from "./author_text";
import type { Ask } from "./conversation";
import { visible, visibleLine } from "./visible_text";
import type { ClosedAsk, WorkspaceView } from "./workspace_view";

/** Of a client id: enough to tell two clients apart. Characters. */
const CLIENT_ID_CHARS = 4;
/** Length of the name of a tool's parameter: longer names leave no room for the value. Characters. */
const PARAMETER_NAME_CHARS_MAX = 24;
/** Nested agents: more than the server allows. Items. */
const AGENT_DEPTH_MAX = 16;
/** Parameters that have a field of their own, or repeat one for other clients. */
const OTHER_FIELDS = new Set(["command", "shown", "cwd", "diff", "path", "is_new"]);
/** The client of an answer that a rule or the mode gave. */
const BY_RULE = "rule";

const ANSWER_LABELS: Record<string, string> = {
    allow: "allowed",
    allow_session: "allowed for the session",
    allow_always: "always allowed",
    deny: "denied",
    answered: "answered",
    cancelled: "not answered",
};

export function isApproval(ask: Ask): ask is PermissionRequest {
    return "tool_name" in ask;
}

export function isQuestion(ask: Ask): ask is QuestionBatch {
    return !isApproval(ask);
}

export interface ApprovalField {
    kind: "command" | "path" | "parameter";
    label: string;
    /** Made visible. */
    text: string;
}

export function approvalTitle(ask: PermissionRequest): string {
    const title = visibleLine(withoutCommand(ask));
    return `${visibleLine(ask.tool_name)} needs your approval${title && `: ${title}`}`;
}

/** Return the description without the start of the command at its end: all of it is below the title. */
function withoutCommand({ description, params }: PermissionRequest): string {
    const command = params["command"];
    if (typeof command !== "string") return description;
    const words = command.trim().split(/\s+/).join(" ");
    let index = description.indexOf("$ ");
    while (index >= 0 && !words.startsWith(description.slice(index + 2).replace(/…$/, ""))) {
        index = description.indexOf("$ ", index + 1);
    }
    return index < 0 ? description : description.slice(0, index).replace(/: $/, "");
}

/** Return everything the decision depends on, except for the diff: the command, where it runs, other parameters. */
export function approvalFields(ask: PermissionRequest): ApprovalField[] {
    const fields: ApprovalField[] = [];
    const command = ask.params["command"];
    if (typeof command === "string") fields.push({ kind: "command", label: "$", text: visible(command) });
    if (ask.path) {
        const label = ask.action === "execute" ? "in" : "file";
        fields.push({ kind: "path", label, text: visible(ask.path, "") });
    }
    for (const [name, value] of Object.entries(ask.params)) {
        if (OTHER_FIELDS.has(name) || isNothing(value)) continue;
        const text = typeof value === "string" ? value : JSON.stringify(value);
        fields.push({ kind: "parameter", label: visibleLine(name, PARAMETER_NAME_CHARS_MAX), text: visible(text) });
    }
    return fields;
}

function isNothing(value: unknown): boolean {
    if (value === null || value === false || value === "") return true;
    return typeof value === "object" && Object.keys(value).length === 0;
}

export function approvalDiff(ask: PermissionRequest): string {
    const diff = ask.params["diff"];
    return typeof diff === "string" ? diff : "";
}

/** Return the pending Asks: those for the session first, each group the oldest first. */
export function asksInOrder(view: WorkspaceView, sessionId: string): Ask[] {
    const asks = view.asks();
    return [
        ...asks.filter((ask) => isFor(view, ask, sessionId)),
        ...asks.filter((ask) => !isFor(view, ask, sessionId)),
    ];
}

/** Return whether a Run of the session asks, directly or through a child Run. */
export function isFor(view: WorkspaceView, ask: Ask, sessionId: string): boolean {
    if (ask.session_id === sessionId) return true;
    let run = view.run(ask.run_id);
    for (let depth = 0; depth < AGENT_DEPTH_MAX; depth++) {
        if (!run?.parent_run_id) return false;
        run = view.run(run.parent_run_id);
        if (run?.session_id === sessionId) return true;
    }
    return false;
}

/** Return the result of an Ask that this user did not answer. */
export function closedText(ask: Ask, closed: ClosedAsk): string {
    const name = isApproval(ask) ? visibleLine(ask.tool_name) : "question";
    if (!closed.answer) return `${name}: withdrawn, because the run was stopped`;
    const label = ANSWER_LABELS[closed.answer] ?? visibleLine(closed.answer);
    if (closed.by === BY_RULE) return `${name}: ${label} by a rule or the mode`;
    if (closed.author) return `${name}: ${label}${byAuthor(closed.author)}`;
    const client = closed.by
        ? `another client (${visibleLine(closed.by.slice(0, CLIENT_ID_CHARS))})`
        : "another client";
    return `${name}: ${label} by ${client}`;
}

/** The answers to a batch while the user gives them. */
export interface Given {
    selected: ReadonlySet<string>;
    text: string;
}

/** Return the responses to the questions; null if none of them has an answer, which declines. */
export function responsesTo(questions: readonly QuestionBody[], given: readonly Given[]): QuestionResponse[] | null {
    const responses = questions.map((question, index) => ({
        request_id: question.request_id,
        selected_ids: question.options.filter((option) => given[index]?.selected.has(option.id)).map(({ id }) => id),
        fill_in_text: given[index]?.text.trim() ?? "",
    }));
    return responses.some((one) => one.selected_ids.length > 0 || one.fill_in_text) ? responses : null;
}
