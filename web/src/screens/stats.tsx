/** Statistics of ended Runs: the figures of `kedge stats`, as plots, tables and CSV files. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { call } from "../api/call";
import { RequestError } from "../api/http";
import type { StatsBody } from "../api/types";
import { Figure } from "../parts/figure";
import { folderName } from "../parts/format";
import { Header, ThemeButton } from "../parts/header";
import { retryWhileAway } from "../state/retry";
import { workspaces } from "../state/server";
import { GROUPS, groupPlots, spreadText, toolPlot, valueText, type Group } from "../view/figures";
import { tokenCount } from "../view/number_text";
import { utcOffsetMin } from "../view/time_scale";

const DAY_MS = 24 * 3_600_000;
const RANGES = [
    [1, "24 hours"],
    [7, "7 days"],
    [30, "30 days"],
    [90, "90 days"],
    [365, "1 year"],
] as const;

export function StatsScreen({ onMenu }: { onMenu: () => void }) {
    const days = useSignal(30);
    const by = useSignal<Group>("day");
    const workspaceId = useSignal("");
    const report = useSignal<{ body: StatsBody; by: Group } | null>(null);
    const problem = useSignal("");
    const reads = useSignal(0);
    useEffect(() => {
        const ending = new AbortController();
        const group = by.value;
        void read(group, days.value, workspaceId.value, ending.signal)
            .then((body) => {
                report.value = { body, by: group };
                problem.value = "";
            })
            .catch((error: unknown) => {
                if (ending.signal.aborted) return;
                problem.value = error instanceof RequestError ? error.message : String(error);
            });
        return () => ending.abort();
    }, [days.value, by.value, workspaceId.value, reads.value]);
    const shown = report.value;
    return (
        <>
            <Header title="Statistics" detail="Runs that have ended" onMenu={onMenu}>
                <button
                    type="button"
                    class="icon-button"
                    aria-label="Refresh"
                    title="Refresh"
                    onClick={() => reads.value++}
                >
                    ↻
                </button>
                <ThemeButton />
            </Header>
            {problem.value && (
                <p class="notice-line" role="alert">
                    {problem.value}
                </p>
            )}
            <div class="stats">
                <form class="stats-controls" onSubmit={(event) => event.preventDefault()}>
                    <Choice label="Range" value={String(days.value)} onChange={(value) => (days.value = Number(value))}>
                        {RANGES.map(([value, text]) => [String(value), text])}
                    </Choice>
                    <Choice label="By" value={by.value} onChange={(value) => (by.value = value as Group)}>
                        {Object.entries(GROUPS).map(([value, text]) => [value, text.toLowerCase()])}
                    </Choice>
                    <Choice label="Workspace" value={workspaceId.value} onChange={(id) => (workspaceId.value = id)}>
                        {[["", "all"], ...(workspaces.value ?? []).map(({ id, path }) => [id, folderName(path)])]}
                    </Choice>
                </form>
                {!shown && !problem.value && <p class="quiet">Counting …</p>}
                {shown?.body.total.runs === 0 && (
                    <p class="quiet stats-empty" role="status">
                        No run ended in this range. Choose a longer one, or come back after the first prompt.
                    </p>
                )}
                {shown && shown.body.total.runs > 0 && <Report {...shown} />}
            </div>
        </>
    );
}

function Report({ body, by }: { body: StatsBody; by: Group }) {
    const tools = body.tools.length > 0;
    const plots = useMemo(() => [...groupPlots(body, by), ...(tools ? [toolPlot(body)] : [])], [body, by]);
    const { total } = body;
    const tokens = total.input_tokens + total.output_tokens;
    const tiles: [name: string, value: string, detail: string, raw: number][] = [
        ["Runs", total.runs.toLocaleString("en"), `${total.completed} completed`, total.runs],
        ["Failed", total.failed.toLocaleString("en"), reasons(body), total.failed],
        ["Cancelled", total.cancelled.toLocaleString("en"), `${total.interrupted} interrupted`, total.cancelled],
        ["Cost", valueText(total.cost_usd, "usd"), `${total.steps.toLocaleString("en")} steps`, total.cost_usd],
        ["Tokens", tokenCount(tokens), `${tokenCount(total.output_tokens)} output`, tokens],
        ["First token", spreadText(total.first_token), p95(total.first_token.p95_ms), total.first_token.median_ms],
        ["Queue wait", spreadText(total.queue_wait), p95(total.queue_wait.p95_ms), total.queue_wait.median_ms],
        ["Duration", spreadText(total.duration), p95(total.duration.p95_ms), total.duration.median_ms],
        ["Tool calls", total.tool_calls.toLocaleString("en"), `${total.tool_failures} failed`, total.tool_calls],
    ];
    return (
        <>
            <dl class="stats-tiles">
                {tiles.map(([name, value, detail, raw]) => (
                    <div key={name} class="stats-tile" data-figure={name} data-value={raw}>
                        <dt>{name}</dt>
                        <dd>{value}</dd>
                        <dd class="quiet">{detail}</dd>
                    </div>
                ))}
            </dl>
            <div class="stats-figures">
                {plots.map((plot) => (
                    <Figure key={plot.id} plot={plot} />
                ))}
            </div>
        </>
    );
}

function reasons(body: StatsBody): string {
    const counts = Object.entries(body.reasons).filter(([name]) => !name.startsWith("cancelled"));
    const [first] = counts.sort((a, b) => b[1] - a[1]);
    return first ? `most: ${first[0].replaceAll("_", " ")}` : "no failure";
}

function p95(ms: number): string {
    return `p95 ${valueText(ms, "ms")}`;
}

function Choice(props: { label: string; value: string; onChange: (value: string) => void; children: string[][] }) {
    return (
        <label class="stats-choice">
            <span aria-hidden="true">{props.label}</span>
            <select
                class="field"
                aria-label={props.label}
                value={props.value}
                onChange={(event) => props.onChange(event.currentTarget.value)}
            >
                {props.children.map(([value, text]) => (
                    <option key={value} value={value}>
                        {text}
                    </option>
                ))}
            </select>
        </label>
    );
}

function read(by: Group, days: number, workspaceId: string, signal: AbortSignal): Promise<StatsBody> {
    const now = Date.now();
    const query = {
        by,
        since: now - days * DAY_MS,
        until: now + 1,
        utc_offset_min: utcOffsetMin(now),
        ...(workspaceId ? { workspace_id: workspaceId } : {}),
    };
    return retryWhileAway(
        () => call("get", "/v1/stats", { query, signal }),
        () => signal.aborted,
    );
}
