/** The picture of a Lane: one row for each Run in the order of acceptance, and the lines of the cancels. Pure. */

import type { CallBody, LaneRunBody, StepBody } from "../api/types";
import { cancelMarks, isCovered, type CancelMark } from "./lane_model";
import { fit, toPixel, type Span } from "./time_scale";

export interface Frame {
    readonly view: Span;
    /** The width of the picture. Pixels. */
    readonly width: number;
    readonly now: number;
}

/** queued, active, folded into another Run, or the outcome. */
export type Phase = "queued" | "active" | "folded" | "completed" | "failed" | "cancelled" | "interrupted";

/** A part of a row between two pixels, cut off at the edges of the picture. */
export interface Bar {
    x: number;
    width: number;
}

export interface Item extends Bar {
    /** reply: of the model. call: a tool runs. wait: a call waits for its approval or for earlier calls. */
    kind: "reply" | "call" | "wait";
    /** `step.message_id`, or that and the id of the call. */
    key: string;
    isError: boolean;
    step: StepBody;
    call: CallBody | null;
}

export interface Row {
    run: LaneRunBody;
    index: number;
    phase: Phase;
    /** Where it was accepted; null: outside of the picture. */
    acceptedX: number | null;
    /** From acceptance to start or end. */
    queue: Bar | null;
    /** From start to end. */
    active: Bar | null;
    /** A folded Run, from joining its host to its end. */
    folded: Bar | null;
    items: Item[];
    /** Moves in the queue, and resumes after the loss of a server. */
    notes: { kind: "move" | "resume"; x: number }[];
    /** Where it ended; null: it has not, or outside of the picture. */
    endX: number | null;
    /** Where it joined its host, and the row of the host. */
    join: { x: number; host: number } | null;
    /** Numbers of the cancels that cover it. */
    coveredBy: number[];
}

/** The line of a cancel: down to the last Run that it covers, then to the right, above all Runs accepted later. */
export interface CancelLine {
    cancel: CancelMark;
    number: number;
    x: number;
    /** The first row that it crosses, and the last one. */
    first: number;
    last: number;
    /** The cancel covers all Runs so far; otherwise one Run. */
    isStepped: boolean;
    covered: string[];
}

export interface Picture {
    rows: Row[];
    lines: CancelLine[];
}

/** Blocks are at least this wide, so that short ones are visible. Pixels. */
const BLOCK_PX_MIN = 2;
/** Blocks that are drawn outside of the picture, so that edges and outlines are not visible. Pixels. */
const OUTSIDE_PX = 8;

export function phaseOf(run: LaneRunBody): Phase {
    if (run.folded_into) return "folded";
    return run.state === "ended" ? (run.outcome ?? "completed") : run.state;
}

export function layOut(runs: readonly LaneRunBody[], frame: Frame): Picture {
    const indexes = new Map(runs.map((run, index) => [run.run_id, index]));
    const cancels = cancelMarks(runs);
    const rows = runs.map((run, index) => row(run, index, frame, indexes));
    const lines = cancels.map((cancel, number) => cancelLine(cancel, number, rows, frame));
    return { rows, lines: lines.filter((line) => line.x >= -OUTSIDE_PX && line.x <= frame.width + OUTSIDE_PX) };
}

function cancelLine(cancel: CancelMark, number: number, rows: readonly Row[], frame: Frame): CancelLine {
    const covered = rows.filter((row) => isCovered(row.run, cancel));
    for (const row of covered) row.coveredBy.push(number);
    const isStepped = cancel.mark !== null;
    const mark = cancel.mark ?? -1;
    const last = isStepped ? rows.findLastIndex((row) => row.run.seq <= mark) : (covered[0]?.index ?? 0);
    return {
        cancel,
        number,
        x: toPixel(frame.view, frame.width, cancel.at),
        first: covered[0]?.index ?? last,
        last,
        isStepped,
        covered: covered.map((row) => row.run.run_id),
    };
}

function row(run: LaneRunBody, index: number, frame: Frame, indexes: Map<string, number>): Row {
    const { started_at: startedAt, ended_at: endedAt } = run;
    const end = endedAt ?? frame.now;
    const isFolded = Boolean(run.folded_into);
    const hostIndex = indexes.get(run.folded_into ?? "");
    const joinX = isFolded && startedAt !== undefined ? inside(frame, startedAt) : null;
    const life = startedAt === undefined ? null : bar(frame, startedAt, end);
    return {
        run,
        index,
        phase: phaseOf(run),
        acceptedX: inside(frame, run.accepted_at),
        queue: bar(frame, run.accepted_at, startedAt ?? end, 0),
        active: isFolded ? null : life,
        folded: isFolded ? life : null,
        items: isFolded ? [] : items(run, end, frame),
        notes: run.trace.flatMap(({ kind, at }) => {
            const x = inside(frame, at);
            return x !== null && (kind === "move" || kind === "resume") ? [{ kind, x }] : [];
        }),
        endX: endedAt === undefined ? null : inside(frame, endedAt),
        join: joinX !== null && hostIndex !== undefined ? { x: joinX, host: hostIndex } : null,
        coveredBy: [],
    };
}

/** Return the replies and calls of a Run. What is too small to see beside the block before it is left out. */
function items(run: LaneRunBody, runEnd: number, frame: Frame): Item[] {
    const all: Item[] = [];
    /** By kind: where its last block ends. */
    const ends = { reply: -Infinity, call: -Infinity, wait: -Infinity };
    const add = (kind: Item["kind"], from: number, to: number, step: StepBody, call: CallBody | null) => {
        const block = bar(frame, from, Math.max(from, to));
        const isError = kind === "call" && (call?.is_error ?? false);
        if (!block || (!isError && block.x + block.width < ends[kind] + 1)) return;
        ends[kind] = block.x + block.width;
        const key = call ? `${step.message_id} ${call.id}` : step.message_id;
        all.push({ ...block, kind, key, isError, step, call });
    };
    for (const step of run.steps) {
        add("reply", step.started_at, step.ended_at ?? runEnd, step, null);
        for (const call of step.calls) {
            const begin = call.started_at ?? call.ended_at ?? runEnd;
            if (begin > call.requested_at) add("wait", call.requested_at, begin, step, call);
            if (call.started_at !== undefined) add("call", call.started_at, call.ended_at ?? runEnd, step, call);
        }
    }
    return all;
}

function inside(frame: Frame, time: number): number | null {
    const x = toPixel(frame.view, frame.width, time);
    return x >= -OUTSIDE_PX && x <= frame.width + OUTSIDE_PX ? x : null;
}

/** Return the part between two times that is in the picture. */
function bar(frame: Frame, from: number, to: number, widthMin = BLOCK_PX_MIN): Bar | null {
    const x = toPixel(frame.view, frame.width, from);
    const end = Math.max(x + widthMin, toPixel(frame.view, frame.width, to));
    if (end < -OUTSIDE_PX || x > frame.width + OUTSIDE_PX || end === x) return null;
    const left = Math.max(x, -OUTSIDE_PX);
    return { x: round(left), width: round(Math.min(end, frame.width + OUTSIDE_PX) - left) };
}

function round(pixels: number): number {
    return Math.round(pixels * 10) / 10;
}

/** Return the view of all these Runs, or of their latest day. */
export function fitRuns(runs: readonly LaneRunBody[], now: number): Span {
    let start = now;
    let end = 0;
    for (const run of runs) {
        start = Math.min(start, run.accepted_at);
        end = Math.max(end, run.ended_at ?? now);
    }
    return fit(start, end || now);
}
