import { expect, test } from "vitest";
import type { StreamEvent } from "../src/api/events";
import type { LaneRunBody } from "../src/api/types";
import { fitRuns, layOut } from "../src/view/lane_layout";
import { LaneModel, cancelMarks, isCovered } from "../src/view/lane_model";
import { SPAN_MS_MAX, SPAN_MS_MIN, fit, follow, reveal, ticks, toPixel, toTime, zoom } from "../src/view/time_scale";

const USAGE = { input_tokens: 0, output_tokens: 0, cost_usd: 0 } as LaneRunBody["usage"];

function run(seq: number, fields: Partial<LaneRunBody>): LaneRunBody {
    return {
        run_id: `r${seq}`,
        session_id: "s1",
        seq,
        state: "ended",
        prompt: `prompt ${seq}`,
        accepted_at: seq * 1000,
        folds: false,
        stopping: false,
        queue_order: seq,
        model: "",
        usage: USAGE,
        trace: [],
        step_count: 0,
        steps: [],
        omitted: 0,
        ...fields,
    };
}

/** Run 1 ended before the cancel; 2 was active, 3 folded into it, 4 queued; 5 was accepted after the cancel. */
const CANCELLED = [
    run(1, { accepted_at: 0, started_at: 0, ended_at: 1000, outcome: "completed" }),
    run(2, {
        accepted_at: 1000,
        started_at: 1000,
        ended_at: 5050,
        outcome: "cancelled",
        trace: [{ kind: "cancel", at: 5000, mark: 4 }],
        steps: [
            {
                message_id: "m1",
                started_at: 1000,
                ended_at: 2000,
                is_summary: false,
                calls: [
                    {
                        id: "c1",
                        name: "bash",
                        title: "",
                        requested_at: 2000,
                        started_at: 3000,
                        ended_at: 4000,
                        is_error: true,
                    },
                ],
            },
        ],
    }),
    run(3, { accepted_at: 2000, started_at: 2500, ended_at: 5050, outcome: "cancelled", folded_into: "r2" }),
    run(4, { accepted_at: 3000, ended_at: 5050, outcome: "cancelled", reason: "cancelled_in_queue" }),
    run(5, { accepted_at: 5010, started_at: 5100, state: "active" }),
];
const FRAME = { view: { from: 0, span: 10_000 }, width: 1000, now: 8000 };

test("a cancel covers what was live and accepted before it, and nothing else", () => {
    const [cancel] = cancelMarks(CANCELLED);
    expect(cancel).toEqual({ at: 5000, mark: 4, runId: "r2", author: "" });
    expect(CANCELLED.filter((one) => isCovered(one, cancel!)).map((one) => one.seq)).toEqual([2, 3, 4]);
    const { rows, lines } = layOut(CANCELLED, FRAME);
    expect(lines).toMatchObject([{ x: 500, first: 1, last: 3, isStepped: true, covered: ["r2", "r3", "r4"] }]);
    expect(rows.map((row) => row.coveredBy)).toEqual([[], [0], [0], [0], []]);
    // All that is below the line was accepted to the right of it.
    expect(rows.slice(4).every((row) => (row.acceptedX ?? 0) >= 500)).toBe(true);
});

test("the cancel of one Run covers no other", () => {
    const runs = [run(1, { ended_at: 9000, trace: [{ kind: "cancel_run", at: 5000 }] }), run(2, { ended_at: 9000 })];
    const { lines } = layOut(runs, FRAME);
    expect(lines).toMatchObject([{ first: 0, last: 0, isStepped: false, covered: ["r1"] }]);
});

test("rows show the phases of a Run", () => {
    const { rows } = layOut(CANCELLED, FRAME);
    expect(rows.map((row) => row.phase)).toEqual(["completed", "cancelled", "folded", "cancelled", "active"]);
    expect(rows[2]).toMatchObject({ join: { x: 250, host: 1 }, queue: { x: 200, width: 50 }, active: null });
    expect(rows[3]).toMatchObject({ queue: { x: 300, width: 205 }, active: null });
    expect(rows[4]).toMatchObject({ active: { x: 510, width: 290 }, endX: null });
    const items = rows[1]?.items.map(({ kind, x, width, isError }) => [kind, x, width, isError]);
    expect(items).toEqual([
        ["reply", 100, 100, false],
        ["wait", 200, 100, false],
        ["call", 300, 100, true],
    ]);
});

test("what is outside of the picture or too small is not drawn", () => {
    const step = (index: number) => ({
        message_id: `m${index}`,
        started_at: index,
        ended_at: index + 1,
        is_summary: false,
        calls: [],
    });
    const steps = Array.from({ length: 2000 }, (_, index) => step(index));
    const many = run(1, { accepted_at: 0, started_at: 0, ended_at: 2000, steps });
    const wide = layOut([many], { ...FRAME, view: { from: 0, span: 10_000 } });
    expect(wide.rows[0]?.items.length).toBeLessThan(220);
    const away = layOut([many], { ...FRAME, view: { from: 50_000, span: 10_000 } });
    expect(away.rows[0]).toMatchObject({ queue: null, active: null, items: [], endX: null, acceptedX: null });
});

test("time and pixels are inverse, and zoom keeps the time under the pointer", () => {
    const view = { from: 1_000_000, span: 60_000 };
    expect(toTime(view, 800, toPixel(view, 800, 1_012_345))).toBeCloseTo(1_012_345);
    const near = zoom(view, 0.25, 0.3);
    expect(toTime(near, 1, 0.3)).toBeCloseTo(toTime(view, 1, 0.3));
    expect(zoom(view, 1e-9, 0.5).span).toBe(SPAN_MS_MIN);
    expect(zoom(view, 1e9, 0.5).span).toBe(SPAN_MS_MAX);
    const now = follow(view, 5_000_000);
    expect(toPixel(now, 100, 5_000_000)).toBeCloseTo(92);
    expect(reveal(now, 5_000_000 - 1000)).toBe(now);
    expect(toPixel(reveal(now, 0), 100, 0)).toBeCloseTo(25);
});

test("a span is a whole number, and a zoom by 2 and back is exact", () => {
    for (let end = 1_001; end < 1_400; end++) {
        const view = fit(0, end);
        expect(Number.isInteger(view.span)).toBe(true);
        expect(zoom(view, 2, 0.3).span).toBe(2 * view.span);
        expect(zoom(zoom(view, 2, 0.3), 0.5, 0.3).span).toBe(view.span);
        expect(zoom(zoom(zoom(view, 4, 0), 0.5, 0), 0.5, 0).span).toBe(view.span);
    }
});

test("fit shows all Runs, at most the latest day", () => {
    const view = fitRuns(CANCELLED, 8000);
    expect(toPixel(view, 100, 0)).toBeGreaterThan(0);
    expect(toPixel(view, 100, 8000)).toBeLessThan(100);
    const long = fit(0, 10 * SPAN_MS_MAX);
    expect(long.span).toBe(SPAN_MS_MAX);
    expect(toPixel(long, 100, 10 * SPAN_MS_MAX)).toBeLessThan(100);
});

test("ticks are at round local times", () => {
    const noon = Date.UTC(2026, 0, 2, 12);
    const hours = ticks({ from: noon, span: SPAN_MS_MAX }, 700, 330);
    expect(hours.map((tick) => tick.text)).toEqual([
        "18:00",
        "21:00",
        "01-03",
        "03:00",
        "06:00",
        "09:00",
        "12:00",
        "15:00",
    ]);
    expect(ticks({ from: noon, span: 1000 }, 400, 0).map((tick) => tick.text)).toEqual([
        "00:00.0",
        "00:00.5",
        "00:01.0",
    ]);
    expect(ticks({ from: noon, span: SPAN_MS_MIN }, 0, 0).length).toBeLessThan(3);
});

// --- events ----------------------------------------------------------------------------------------------------------

type Change = StreamEvent["change"];

function event(type: string, position: number | null, payload: object, change: Change = "updated"): StreamEvent {
    return { type, change, position, payload: { session_id: "s1", ...payload } };
}

const BODY = {
    run_id: "r1",
    workspace_id: "w1",
    seq: 1,
    prompt: "do it",
    accepted_at: 100,
    usage: USAGE,
    cleanup: "clean",
    stopping: false,
    steps: 0,
    queue_order: 1,
    folds: false,
    context_tokens: 0,
};

function model(): LaneModel {
    const made = new LaneModel("s1");
    made.load({ session_id: "s1", position: 10, runs: [], cancels: [] });
    return made;
}

test("events build the same Run as a page", () => {
    const lane = model();
    const message = { id: "m1", role: "assistant", run_id: "r1", created_at: 300, updated_at: 300, is_summary: false };
    const call = { type: "tool_call", data: { id: "c1", name: "bash", title: "make" } };
    const finish = { type: "finish", data: { reason: "tool_use", time: 400 } };
    const data = { tool_call_id: "c1", is_error: true, started_at: 450, end: "returned" };
    const result = { type: "tool_result", data };
    const cancel = { kind: "cancel", at: 600, mark: 1 };
    const events = [
        event("run", 11, { ...BODY, state: "queued" }, "created"),
        event("run", 12, { ...BODY, state: "active", started_at: 200 }),
        event("message", 13, { ...message, parts: [] }, "created"),
        event("message", 14, { ...message, parts: [call, finish] }),
        event("message", 15, { ...message, id: "m2", role: "tool", created_at: 500, parts: [result] }, "created"),
        event("run", 16, {
            ...BODY,
            state: "ended",
            started_at: 200,
            ended_at: 610,
            outcome: "cancelled",
            steps: 1,
            trace: [cancel],
        }),
    ];
    // Repeated and late events change nothing, with or without a Position.
    const late = event("message", null, { ...message, parts: [] });
    for (const one of [...events, ...events.slice(0, 2), late]) expect(lane.apply(one)).toBe(true);
    expect(lane.ordered()).toMatchObject([
        {
            state: "ended",
            outcome: "cancelled",
            ended_at: 610,
            step_count: 1,
            trace: [cancel],
            steps: [
                {
                    message_id: "m1",
                    started_at: 300,
                    ended_at: 400,
                    finish: "tool_use",
                    calls: [{ id: "c1", requested_at: 400, started_at: 450, ended_at: 500, is_error: true }],
                },
            ],
        },
    ]);
});

test("events that the page has, and those of other sessions, are ignored", () => {
    const lane = model();
    lane.apply(event("run", 9, { ...BODY, state: "queued" }, "created"));
    lane.apply(event("run", 11, { ...BODY, state: "queued", session_id: "s2" }, "created"));
    expect(lane.ordered()).toEqual([]);
    const before = lane.version;
    lane.apply(event("message", 12, { id: "m1", role: "assistant", run_id: "unknown", parts: [] }, "created"));
    expect(lane.version).toBe(before);
});

test("a gap and a rewind require a new page", () => {
    const lane = model();
    expect(lane.apply(event("gap", null, {}))).toBe(false);
    expect(lane.apply(event("rewind", 11, { message_id: "m1" }))).toBe(false);
    expect(lane.apply(event("rewind", 11, { message_id: "m1", session_id: "s2" }))).toBe(true);
});

test("a message after the end of its Run is not a Step", () => {
    const lane = model();
    lane.apply(event("run", 11, { ...BODY, state: "ended", ended_at: 200 }, "created"));
    const message = { id: "m1", role: "assistant", run_id: "r1", parts: [], created_at: 300 };
    lane.apply(event("message", 12, message, "created"));
    expect(lane.run("r1")?.steps).toEqual([]);
});
