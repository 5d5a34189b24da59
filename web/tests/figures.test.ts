import { expect, test } from "vitest";
import type { FiguresBody, StatsBody } from "../src/api/types";
import { csv, drawn, groupPlots, heights, toolPlot, valueText, type Plot } from "../src/view/figures";

const SPREAD = { count: 1, median_ms: 5, p95_ms: 9 };

function figures(key: string, fields: Partial<FiguresBody> = {}): FiguresBody {
    return {
        key,
        label: key,
        runs: 3,
        completed: 1,
        failed: 1,
        cancelled: 1,
        interrupted: 0,
        folded: 0,
        children: 0,
        resumed: 0,
        steps: 1,
        input_tokens: 10,
        output_tokens: 4,
        cache_read_tokens: 6,
        cache_write_tokens: 0,
        cost_usd: 0.5,
        queue_wait: SPREAD,
        first_token: SPREAD,
        duration: SPREAD,
        tool_calls: 0,
        tool_failures: 0,
        ...fields,
    };
}

function report(...groups: FiguresBody[]): StatsBody {
    const tools = [{ name: "bash", runs: 1, calls: 5, failures: 2, not_run: 1, busy_ms: 7 }];
    return { since: 0, until: 1, by: "day", total: figures(""), groups, tools, reasons: {} };
}

function plot(id: string, plots: Plot[]): Plot {
    const one = plots.find((candidate) => candidate.id === id);
    if (!one) throw new Error(`no plot ${id}`);
    return one;
}

test("stacked bars add up, the parts of tokens to all tokens", () => {
    const plots = groupPlots(report(figures("2026-01-01")), "day");
    expect(heights(plot("outcomes", plots))).toEqual([[1], [2], [3], [3]]);
    expect(heights(plot("tokens", plots)).at(-1)).toEqual([14]);
    expect(heights(plot("duration", plots))).toEqual([[9], [5]]);
    expect(heights(toolPlot(report()))).toEqual([[3], [5], [6]]);
});

test("days without Runs are drawn and not counted", () => {
    const days = report(figures("2026-02-27"), figures("2026-03-02"));
    const cost = plot("cost", groupPlots(days, "day"));
    expect(cost.labels).toEqual(["2026-02-27", "2026-03-02"]);
    expect(drawn(cost).labels).toEqual(["2026-02-27", "2026-02-28", "2026-03-01", "2026-03-02"]);
    expect(drawn(cost).series[0]?.values).toEqual([0.5, null, null, 0.5]);
    const years = groupPlots(report(figures("2000-01-01"), figures("2026-03-02")), "day");
    expect(drawn(plot("cost", years)).labels).toHaveLength(2);
    const other = groupPlots(report(figures("2026-01-01"), figures("(other)")), "day");
    expect(drawn(plot("cost", other)).labels).toHaveLength(2);
});

test("a time that was not measured is not zero", () => {
    const none = { count: 0, median_ms: 0, p95_ms: 0 };
    const wait = plot("queue-wait", groupPlots(report(figures("a", { queue_wait: none }), figures("b")), "model"));
    expect(wait.series.map((one) => one.values)).toEqual([
        [null, 9],
        [null, 5],
    ]);
    expect(valueText(null, "ms")).toBe("–");
    expect(csv(wait).split("\r\n")[1]).toBe("a,,");
});

test("a CSV file quotes texts and defuses formulas", () => {
    const groups = report(figures('a,"b"'), figures("=1+1"), figures(""));
    expect(csv(plot("cost", groupPlots(groups, "model"))).split("\r\n")).toEqual([
        "Model,US dollars (USD)",
        '"a,""b""",0.5',
        "'=1+1,0.5",
        "(none),0.5",
        "",
    ]);
});

test("values have units", () => {
    expect([0, 999, 1500, 90_000, 5_400_000].map((value) => valueText(value, "ms"))).toEqual([
        "0 ms",
        "999 ms",
        "1.5 s",
        "1.5 min",
        "1.5 h",
    ]);
    expect([0, 0.00123, 1.234].map((value) => valueText(value, "usd"))).toEqual(["$0", "$0.0012", "$1.23"]);
});
