/** The items of a timeline in words: for the details below the picture, for its table, and for screen readers. */

import type { CallBody, LaneRunBody, StepBody } from "../api/types";
import { byAuthor } from "../view/author_text";
import { isCovered, type CancelMark } from "../view/lane_model";
import { phaseOf, type Phase } from "../view/lane_layout";
import { duration, oneLine, plural } from "./format";

export const PHASES: Record<Phase, string> = {
    queued: "queued",
    active: "active",
    folded: "folded",
    completed: "completed",
    failed: "failed",
    cancelled: "cancelled",
    interrupted: "interrupted",
};

/** The time of day with seconds, and the date if it is not today. */
export function clock(time: number, now: number): string {
    const at = new Date(time);
    const text = at.toLocaleTimeString("en-GB");
    return at.toDateString() === new Date(now).toDateString() ? text : `${at.toLocaleDateString("en-CA")} ${text}`;
}

export function callCount(run: LaneRunBody): number {
    return run.steps.reduce((count, step) => count + step.calls.length, 0);
}

/** Times of a Run; null: it has none. Milliseconds. */
export function queuedMs(run: LaneRunBody, now: number): number {
    return (run.started_at ?? run.ended_at ?? now) - run.accepted_at;
}

export function activeMs(run: LaneRunBody, now: number): number | null {
    return run.started_at === undefined ? null : (run.ended_at ?? now) - run.started_at;
}

/** The end or the present state, with the reason of an end that has one. */
export function stateText(run: LaneRunBody, runs: ReadonlyMap<string, LaneRunBody>): string {
    const phase = phaseOf(run);
    const words = [PHASES[phase]];
    if (phase === "folded") {
        const host = runs.get(run.folded_into ?? "");
        words[0] = host ? `folded into #${host.seq}` : "folded into an earlier run";
        if (run.outcome) words.push(run.outcome);
    }
    if (run.stopping) words.push("stopping");
    if (run.folds) words.push("joins the active run at its next step");
    if (run.reason && run.reason !== run.outcome) words.push(run.reason.replaceAll("_", " "));
    return words.join(", ");
}

/** Everything about a Run in one line. */
export function runText(run: LaneRunBody, runs: ReadonlyMap<string, LaneRunBody>, now: number): string {
    const words = [`#${run.seq} ${stateText(run, runs)}`, `accepted ${clock(run.accepted_at, now)}`];
    if (run.author) words.push(`sent${byAuthor(run.author)}`);
    words.push(`queued ${duration(queuedMs(run, now))}`);
    const active = activeMs(run, now);
    if (active !== null && !run.folded_into) words.push(`active ${duration(active)}`);
    if (run.first_token_at !== undefined && run.started_at !== undefined) {
        words.push(`first token after ${duration(run.first_token_at - run.started_at)}`);
    }
    if (run.step_count > 0) words.push(plural(run.step_count, "step"));
    if (callCount(run) > 0) words.push(plural(callCount(run), "tool call"));
    if (run.usage.cost_usd > 0) words.push(`$${run.usage.cost_usd.toFixed(4)}`);
    return words.join(" · ");
}

export function stepText(step: StepBody, now: number): string {
    const words = [step.is_summary ? "summary" : "reply of the model", clock(step.started_at, now)];
    words.push(step.ended_at === undefined ? "streaming" : duration(step.ended_at - step.started_at));
    if (step.calls.length > 0) words.push(plural(step.calls.length, "tool call"));
    return words.join(" · ");
}

export function callText(call: CallBody, now: number): string {
    const words = [oneLine(call.title.startsWith(call.name) ? call.title : `${call.name} ${call.title}`, 120)];
    const begin = call.started_at ?? call.ended_at;
    if (begin === undefined) words.push(`waits since ${clock(call.requested_at, now)}`);
    else if (begin - call.requested_at >= 100) words.push(`waited ${duration(begin - call.requested_at)}`);
    if (call.started_at !== undefined) {
        const ran = duration((call.ended_at ?? now) - call.started_at);
        words.push(call.ended_at === undefined ? `runs for ${ran}` : `ran ${ran}`);
    }
    if (call.is_error) words.push("error");
    if (call.end && call.end !== "returned") words.push(call.end.replaceAll("_", " "));
    return words.join(" · ");
}

/** What a cancel covers: `#2 to #4`, or one Run. */
export function coverText(cancel: CancelMark, runs: readonly LaneRunBody[]): string {
    const covered = runs.filter((run) => isCovered(run, cancel)).map((run) => run.seq);
    const [first, last] = [covered[0], covered.at(-1)];
    if (first === undefined) return "no loaded run";
    return first === last ? `#${first}` : `#${first} to #${last}`;
}

export function cancelText(cancel: CancelMark, runs: readonly LaneRunBody[], now: number): string {
    const words = [`cancel${byAuthor(cancel.author)} at ${clock(cancel.at, now)} covers ${coverText(cancel, runs)}`];
    if (cancel.mark !== null) words.push(`and nothing accepted after #${cancel.mark}`);
    return words.join(" ");
}
