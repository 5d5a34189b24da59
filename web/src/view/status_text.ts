/** Short texts about a session, as the terminal has them: `tui/panels/status_lines.py`, `client/view/job_text.py`. */

import type { ExtensionBody, JobBody, ModelBody, SessionBody } from "../api/types";
import type { WorkspaceView } from "./workspace_view";

export type Mode = SessionBody["mode"];
export type Effort = SessionBody["effort"];

/** Empty: the default of the model. */
export const EFFORTS: readonly Effort[] = ["", "low", "medium", "high"];

/** The modes with what passes without asking, in the order of the choice. */
export const MODES: readonly (readonly [Mode, string])[] = [
    ["ask", "changes and commands ask"],
    ["edits", "changes of files in the workspace pass, commands ask"],
    ["plan", "read-only; ends with a plan for you to accept"],
    ["auto", "changes and commands pass, in a sandbox without network"],
    ["yolo", "nothing asks; deny rules still hold"],
];

/** The context is highlighted from here on: at about this level the history is summarised. Percent. */
export const CONTEXT_FULL_PERCENT = 80;
/** Latest messages searched for the last context size. Runs that ended before a model request have none. Items. */
const MESSAGES_SEARCHED_MAX = 200;

/** Return how full the model's context was at the last request of the session; null if unknown. */
export function contextPercent(view: WorkspaceView, sessionId: string, model: ModelBody | undefined): number | null {
    const conversation = view.conversations.get(sessionId);
    if (!conversation || !model?.context_window) return null;
    const entries = conversation.ordered().slice(-MESSAGES_SEARCHED_MAX);
    for (const entry of entries.reverse()) {
        const tokens = view.run(entry.body.run_id)?.context_tokens;
        if (tokens) return Math.min(100, Math.round((100 * tokens) / model.context_window));
    }
    return null;
}

/** Format a cost; empty below half a cent. */
export function dollars(cost: number): string {
    return cost >= 0.005 ? `$${cost.toFixed(2)}` : "";
}

/** Return "running", "exit code 1", "signal 9", "ended", "ended with the server". */
export function jobState(job: JobBody): string {
    if (job.state === "server_stopped") return "ended with the server";
    if (job.state !== "exited") return job.state;
    if (job.exit_code === null) return "ended";
    return job.exit_code < 0 ? `signal ${-job.exit_code}` : `exit code ${job.exit_code}`;
}

/** Return how long a job has run, in the largest unit that fits; empty if that is not known. */
export function runtime(job: JobBody, nowMs: number): string {
    const end = job.state === "running" ? nowMs : job.ended_at;
    if (end === null) return "";
    const seconds = Math.max(0, Math.floor((end - job.started_at) / 1000));
    for (const [unit, length] of [
        ["d", 86400],
        ["h", 3600],
        ["m", 60],
    ] as const) {
        if (seconds >= length) return `${Math.floor(seconds / length)}${unit}`;
    }
    return `${seconds}s`;
}

/** Return what a cancel did not end. */
export function jobsRemain(jobs: readonly JobBody[]): string {
    return jobs.length === 1
        ? "1 kept command still runs; end it in the side panel"
        : `${jobs.length} kept commands still run; end them in the side panel`;
}

const EXTENSION_TITLES: readonly (readonly [ExtensionBody["kind"], string])[] = [
    ["mcp", "MCP servers"],
    ["skill", "Skills"],
    ["command", "Commands"],
    ["agent", "Agents"],
    ["hook", "Hooks"],
    ["lsp", "Language servers"],
    ["plugin", "Plugins"],
];

/** Return the numbers of tools, prompts and resources of an MCP server; empty if they are not known. */
export function offerCounts(server: ExtensionBody): string {
    const offers = server.offers ?? [];
    const prompts = offers.filter((offer) => offer.startsWith("/")).length;
    const resources = offers.filter((offer) => offer.startsWith("@")).length;
    const counts: [number, string][] = [
        [offers.length - prompts - resources, "tool"],
        [prompts, "prompt"],
        [resources, "resource"],
    ];
    const shown = counts.filter(([count]) => count > 0);
    return shown.map(([count, one]) => `${count} ${one}${count === 1 ? "" : "s"}`).join(", ");
}

/** Return the extensions by kind, with the title of the kind. */
export function extensionGroups(extensions: readonly ExtensionBody[]): [title: string, group: ExtensionBody[]][] {
    const groups: [string, ExtensionBody[]][] = [];
    for (const [kind, title] of EXTENSION_TITLES) {
        const group = extensions.filter((one) => one.kind === kind);
        if (group.length > 0) groups.push([title, group.sort((a, b) => (a.name < b.name ? -1 : 1))]);
    }
    return groups;
}
