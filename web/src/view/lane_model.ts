/**
 * The timeline of a session, reduced from pages of `GET .../lane` and the events after them. `docs/protocol.md` has the
 * table of what each event updates.
 */

import type { StreamEvent } from "../api/events";
import type {
    CallBody,
    LaneBody,
    LaneRunBody,
    MessageBody,
    PartBody,
    ProgressBody,
    RunBody,
    StepBody,
} from "../api/types";

/** Steps and calls of one Run, as on a page of the server: more than a picture can show. Items. */
const RUN_ITEMS_MAX = 2_000;
/** A prompt in a timeline: a label. Characters. */
const LABEL_CHARS_MAX = 200;

/** A cancel. It covers each live Run with `seq <= mark`; without a mark, the Run `runId` alone. */
export interface CancelMark {
    at: number;
    mark: number | null;
    runId: string;
    /** The user who cancelled. Empty: the owner. */
    author: string;
}

/** Return the cancels in the traces of these Runs, by time. */
export function cancelMarks(runs: Iterable<LaneRunBody>): CancelMark[] {
    const marks: CancelMark[] = [];
    for (const { run_id: runId, trace } of runs) {
        for (const { kind, at, mark, author = "" } of trace) {
            if (kind === "cancel") marks.push({ at, mark: mark ?? null, runId, author });
            else if (kind === "cancel_run") marks.push({ at, mark: null, runId, author });
        }
    }
    return marks.sort((a, b) => a.at - b.at);
}

/** Whether a cancel covers a Run: it was accepted before the cancel, and had not ended. */
export function isCovered(run: LaneRunBody, cancel: CancelMark): boolean {
    if (cancel.mark === null) return run.run_id === cancel.runId;
    return run.seq <= cancel.mark && (run.ended_at === undefined || run.ended_at >= cancel.at);
}

export class LaneModel {
    /** `before` of the page with earlier Runs; null: all are loaded. */
    nextBefore: number | null = null;
    /** Increases with each change. */
    version = 0;
    private readonly runs = new Map<string, LaneRunBody>();
    /** By Run: the Position of its state. */
    private readonly positions = new Map<string, number>();
    /** The Position of the first page. */
    private position = 0;
    private sorted: LaneRunBody[] | null = null;

    constructor(readonly sessionId: string) {}

    /** Return the Runs in the order of their acceptance. */
    ordered(): LaneRunBody[] {
        this.sorted ??= [...this.runs.values()].sort((a, b) => a.seq - b.seq);
        return this.sorted;
    }

    run(runId: string): LaneRunBody | undefined {
        return this.runs.get(runId);
    }

    /** Replace everything by the page with the latest Runs. */
    load(page: LaneBody): void {
        this.runs.clear();
        this.positions.clear();
        this.position = page.position;
        this.loadEarlier(page);
    }

    /** Add a page with earlier Runs. These have ended: no event has changed them since. */
    loadEarlier(page: LaneBody): void {
        for (const run of page.runs) {
            if (this.runs.has(run.run_id)) continue;
            this.runs.set(run.run_id, run);
            this.positions.set(run.run_id, page.position);
        }
        this.nextBefore = page.next_before ?? null;
        this.changed();
    }

    /** Apply an event. Returns false if the page has to be read again. */
    apply(event: StreamEvent): boolean {
        if (event.type === "gap") return false;
        if (event.position !== null && event.position <= this.position) return true; // the page has it
        const { payload } = event;
        if (payload["session_id"] !== this.sessionId) return true;
        switch (event.type) {
            case "run":
                this.applyRun(payload as unknown as RunBody, event);
                break;
            case "message":
                if (event.change === "deleted") return false;
                this.applyMessage(payload as unknown as MessageBody);
                break;
            case "progress":
                this.applyProgress(payload as unknown as ProgressBody);
                break;
            case "rewind":
                return false; // the Steps of the removed messages are gone
        }
        return true;
    }

    private changed(): void {
        this.sorted = null;
        this.version++;
    }

    private applyRun(body: RunBody, { change, position }: StreamEvent): void {
        if (position === null || position <= (this.positions.get(body.run_id) ?? 0)) return;
        this.positions.set(body.run_id, position);
        if (change === "deleted") this.runs.delete(body.run_id);
        else this.runs.set(body.run_id, laneRun(body, this.runs.get(body.run_id)));
        this.changed();
    }

    private applyMessage(message: MessageBody): void {
        const run = this.runs.get(message.run_id);
        if (!run) return;
        let steps = run.steps;
        if (message.role === "assistant") steps = withStep(run, message);
        else if (message.role === "tool") {
            for (const { type, data } of message.parts) {
                if (type === "tool_result") steps = withResult(steps, data, message.created_at);
            }
        }
        if (steps === run.steps) return;
        this.runs.set(run.run_id, { ...run, steps });
        this.changed();
    }

    private applyProgress(progress: ProgressBody): void {
        const run = this.runs.get(progress.run_id);
        if (!run) return;
        const steps = withCall(run.steps, progress.tool_call_id, (call) => {
            if (call.started_at !== undefined || call.ended_at !== undefined) return call;
            return { ...call, started_at: Math.max(call.requested_at, Date.now()) };
        });
        if (steps === run.steps) return;
        this.runs.set(run.run_id, { ...run, steps });
        this.changed();
    }
}

const OPTIONAL = [
    "started_at",
    "ended_at",
    "outcome",
    "reason",
    "folded_into",
    "parent_run_id",
    "message_id",
    "author",
] as const satisfies (keyof RunBody)[];

/** Return the Run of an event, with the parts that only a page has from before. */
function laneRun(body: RunBody, before: LaneRunBody | undefined): LaneRunBody {
    const run: LaneRunBody = {
        run_id: body.run_id,
        session_id: body.session_id,
        seq: body.seq,
        state: body.state,
        prompt: before?.prompt || body.prompt.slice(0, LABEL_CHARS_MAX),
        accepted_at: body.accepted_at,
        folds: body.folds && body.state === "queued",
        stopping: body.stopping && body.state !== "ended",
        queue_order: body.queue_order,
        model: before?.model ?? "",
        usage: body.usage,
        trace: body.trace ?? [],
        step_count: body.steps,
        steps: before?.steps ?? [],
        omitted: before?.omitted ?? 0,
    };
    for (const name of OPTIONAL) {
        if (body[name] !== undefined) Object.assign(run, { [name]: body[name] });
    }
    if (before?.first_token_at !== undefined) run.first_token_at = before.first_token_at;
    return run;
}

function itemsOf(steps: readonly StepBody[]): number {
    return steps.reduce((count, step) => count + 1 + step.calls.length, 0);
}

/** Return the Steps with the one of a message of the model. */
function withStep(run: LaneRunBody, message: MessageBody): StepBody[] {
    const index = run.steps.findLastIndex((step) => step.message_id === message.id);
    // A Run that is stopped between two Steps has a last message that belongs to none.
    if (index < 0 && (run.state !== "active" || itemsOf(run.steps) >= RUN_ITEMS_MAX)) return run.steps;
    const finish = message.parts.find((part) => part.type === "finish")?.data;
    const endedAt = finish ? Number(finish["time"]) : undefined;
    const requestedAt = endedAt ?? message.updated_at;
    // The text of a streaming message is sent without a Position, and may arrive after its end.
    if (!finish && run.steps[index]?.ended_at !== undefined) return run.steps;
    const known = run.steps[index]?.calls ?? [];
    const step: StepBody = {
        message_id: message.id,
        started_at: message.created_at,
        is_summary: message.is_summary,
        calls: message.parts
            .filter((part) => part.type === "tool_call")
            .map((part) => callOf(part, requestedAt, known)),
    };
    if (endedAt !== undefined) step.ended_at = endedAt;
    if (finish) step.finish = finish["reason"] as NonNullable<StepBody["finish"]>;
    return index < 0 ? [...run.steps, step] : run.steps.with(index, step);
}

function callOf({ data }: PartBody, requestedAt: number, known: readonly CallBody[]): CallBody {
    const id = String(data["id"]);
    const before = known.find((call) => call.id === id);
    const own = { id, name: String(data["name"] ?? ""), title: String(data["title"] ?? "") };
    return { is_error: false, ...before, ...own, requested_at: requestedAt };
}

/** Return the Steps with a changed call. Some providers use an id again in each Step: the latest one counts. */
function withCall(steps: StepBody[], callId: string, change: (call: CallBody) => CallBody): StepBody[] {
    const index = steps.findLastIndex((step) => step.calls.some((call) => call.id === callId));
    const step = steps[index];
    if (!step) return steps;
    let isChanged = false;
    const calls = step.calls.map((call) => {
        const next = call.id === callId ? change(call) : call;
        isChanged ||= next !== call;
        return next;
    });
    return isChanged ? steps.with(index, { ...step, calls }) : steps;
}

function withResult(steps: StepBody[], result: PartBody["data"], at: number): StepBody[] {
    return withCall(steps, String(result["tool_call_id"]), (call) => {
        const { started_at: _, ...rest } = call;
        const next: CallBody = { ...rest, ended_at: at, is_error: Boolean(result["is_error"]) };
        if (Number(result["started_at"]) > 0) next.started_at = Number(result["started_at"]);
        if (result["end"]) next.end = result["end"] as NonNullable<CallBody["end"]>;
        return next;
    });
}
