/** Statistics as plots: each is a set of series over the same labels, which its table and its CSV file show as well. */

import type { FiguresBody, SpreadBody, StatsBody } from "../api/types";

export type Unit = "count" | "ms" | "usd";
/** How a series is drawn, so that it is distinguishable without colour. */
export type Style = "solid" | "striped" | "light" | "dotted";

export interface Series {
    name: string;
    /** Null: nothing was measured. */
    values: (number | null)[];
    style: Style;
    /** The custom property of its colour. */
    colour: "--accent" | "--success" | "--error" | "--warning" | "--text-quiet";
}

export interface Plot {
    id: string;
    title: string;
    unit: Unit;
    /** stack: series add up. overlay: each begins at zero, and covers those before it. */
    kind: "stack" | "overlay";
    /** What the labels are: `Day`, `Model`. */
    by: string;
    labels: string[];
    series: Series[];
}

const DAY_MS = 24 * 3_600_000;
/** Days without Runs are shown up to this range; else a plot has more gaps than bars. Days. */
const DAYS_SHOWN_MAX = 400;
/** Models, workspaces and tools in a plot; the table has all. Items. */
const LABELS_MAX = 40;

export const GROUPS = { day: "Day", model: "Model", workspace: "Workspace", outcome: "Outcome" } as const;
export type Group = keyof typeof GROUPS;

/** Return the plots of the groups of a report. */
export function groupPlots(report: StatsBody, by: Group): Plot[] {
    const groups = report.groups;
    const labels = groups.map((group) => (by === "workspace" ? group.label : group.key) || "(none)");
    const of = (value: (figures: FiguresBody) => number | null) => groups.map(value);
    const measured = (spread: SpreadBody, value: number) => (spread.count > 0 ? value : null);
    const spread = (name: "queue_wait" | "first_token" | "duration", id: string, title: string): Plot => ({
        ...base(id, title, "ms", "overlay"),
        series: [
            {
                name: "95th percentile",
                values: of((f) => measured(f[name], f[name].p95_ms)),
                style: "light",
                colour: "--accent",
            },
            {
                name: "median",
                values: of((f) => measured(f[name], f[name].median_ms)),
                style: "solid",
                colour: "--accent",
            },
        ],
    });
    const base = (id: string, title: string, unit: Unit, kind: Plot["kind"]) => ({
        id,
        title,
        unit,
        kind,
        by: GROUPS[by],
        labels,
        series: [] as Series[],
    });
    return [
        {
            ...base("outcomes", "Runs by outcome", "count", "stack"),
            series: [
                { name: "completed", values: of((f) => f.completed), style: "solid", colour: "--success" },
                { name: "failed", values: of((f) => f.failed), style: "striped", colour: "--error" },
                { name: "cancelled", values: of((f) => f.cancelled), style: "light", colour: "--text-quiet" },
                { name: "interrupted", values: of((f) => f.interrupted), style: "dotted", colour: "--warning" },
            ],
        },
        {
            ...base("cost", "Cost", "usd", "stack"),
            series: [{ name: "US dollars", values: of((f) => f.cost_usd), style: "solid", colour: "--accent" }],
        },
        {
            ...base("tokens", "Tokens", "count", "stack"),
            series: [
                {
                    name: "input",
                    values: of((f) => f.input_tokens - f.cache_read_tokens),
                    style: "solid",
                    colour: "--accent",
                },
                { name: "from cache", values: of((f) => f.cache_read_tokens), style: "light", colour: "--accent" },
                { name: "output", values: of((f) => f.output_tokens), style: "striped", colour: "--success" },
            ],
        },
        spread("first_token", "first-token", "Time to first token"),
        spread("queue_wait", "queue-wait", "Queue wait"),
        spread("duration", "duration", "Duration"),
    ];
}

/** Return the plot of tool calls and their failures. */
export function toolPlot(report: StatsBody): Plot {
    const tools = report.tools;
    const returned = tools.map((tool) => tool.calls - tool.failures);
    return {
        id: "tools",
        title: "Tool calls",
        unit: "count",
        kind: "stack",
        by: "Tool",
        labels: tools.map((tool) => tool.name),
        series: [
            { name: "succeeded", values: returned, style: "solid", colour: "--success" },
            { name: "failed", values: tools.map((tool) => tool.failures), style: "striped", colour: "--error" },
            { name: "not run", values: tools.map((tool) => tool.not_run), style: "light", colour: "--text-quiet" },
        ],
    };
}

/** Return what is drawn of a plot: days without Runs too, and not too many labels. */
export function drawn(plot: Plot): Plot {
    if (plot.by !== GROUPS.day) return pick(plot, plot.labels.slice(0, LABELS_MAX));
    const [first, last] = [plot.labels[0], plot.labels.at(-1)];
    if (!first || !last) return plot;
    const days: string[] = [];
    for (let day = Date.parse(first); day <= Date.parse(last) && days.length <= DAYS_SHOWN_MAX; day += DAY_MS) {
        days.push(new Date(day).toISOString().slice(0, 10));
    }
    return days.length > DAYS_SHOWN_MAX || days.length === 0 ? plot : pick(plot, days);
}

function pick(plot: Plot, labels: string[]): Plot {
    const places = new Map(plot.labels.map((label, index) => [label, index]));
    const series = plot.series.map((one) => ({
        ...one,
        values: labels.map((label) => one.values[places.get(label) ?? -1] ?? null),
    }));
    return { ...plot, labels, series };
}

/** Return the upper ends of the bars of each series; in a stack, the sums up to and including it. */
export function heights(plot: Plot): (number | null)[][] {
    if (plot.kind === "overlay") return plot.series.map((one) => one.values);
    const all: number[][] = [];
    let below = plot.labels.map(() => 0);
    for (const { values } of plot.series) {
        below = below.map((height, index) => height + (values[index] ?? 0));
        all.push(below);
    }
    return all;
}

/** A value for a reader. */
export function valueText(value: number | null, unit: Unit): string {
    if (value === null) return "–";
    if (unit === "usd") return `$${value < 0.01 ? Number(value.toPrecision(2)) : value.toFixed(2)}`;
    if (unit === "count") return value.toLocaleString("en");
    if (value < 1_000) return `${value} ms`;
    if (value < 60_000) return `${(value / 1_000).toFixed(1)} s`;
    return value < 3_600_000 ? `${(value / 60_000).toFixed(1)} min` : `${(value / 3_600_000).toFixed(1)} h`;
}

/** Return a plot as a CSV file (RFC 4180). Times are in milliseconds. */
export function csv(plot: Plot): string {
    const unit = plot.unit === "ms" ? " (ms)" : plot.unit === "usd" ? " (USD)" : "";
    const head = [plot.by, ...plot.series.map((one) => one.name + unit)].map(cell);
    const row = (label: string, index: number) => [cell(label), ...plot.series.map((one) => one.values[index] ?? "")];
    const lines = plot.labels.map((label, index) => row(label, index).join(","));
    return [head.join(","), ...lines, ""].join("\r\n");
}

/** A text of a CSV file. Spreadsheets run texts that begin with these characters as formulas. */
function cell(text: string): string {
    const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function spreadText(spread: SpreadBody): string {
    return valueText(spread.count > 0 ? spread.median_ms : null, "ms");
}
