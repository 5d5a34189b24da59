/** The Lane of a session as a picture, or as a table. */

import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { duration, oneLine, plural } from "../parts/format";
import { Header, ThemeButton } from "../parts/header";
import { Glyph } from "../parts/lane_glyph";
import { LanePicture } from "../parts/lane_picture";
import { LaneTable } from "../parts/lane_table";
import { PHASES } from "../parts/lane_texts";
import { Link } from "../parts/link";
import { LaneState } from "../state/lane";
import { sessionPath } from "../state/route";
import type { Workspace } from "../state/workspace";
import { fitRuns, type Phase } from "../view/lane_layout";
import { follow, zoom, type Span } from "../view/time_scale";

/** How often the present moves: often enough to look continuous, at most once per pixel. Milliseconds. */
const TICK_MS_MIN = 100;
const TICK_MS_MAX = 1_000;
/** The shortest span in which a live Lane begins, and the longest unless its live Runs are older. Milliseconds. */
const LIVE_MS_MIN = 10_000;
const LIVE_MS_MAX = 300_000;
const PIXELS = 1_000;

export function LaneScreen(props: { workspace: Workspace; sessionId: string; onMenu: () => void }) {
    const { workspace, sessionId } = props;
    void workspace.version.value;
    const [lane, setLane] = useState<LaneState | null>(null);
    useEffect(() => {
        if (!workspace.isLoaded) return;
        const opened = new LaneState(workspace, sessionId);
        setLane(opened);
        return () => opened.close();
    }, [workspace, sessionId, workspace.isLoaded]);
    const session = workspace.view.session(sessionId);
    const problem = workspace.failure.value || lane?.error.value;
    return (
        <>
            <Header
                title={`Lane: ${oneLine(session?.title ?? "") || "New session"}`}
                detail={<Link to={sessionPath(workspace.id, sessionId)}>to the transcript</Link>}
                onMenu={props.onMenu}
            >
                <ThemeButton />
            </Header>
            {problem && (
                <p class="notice-line" role="alert">
                    {problem}
                </p>
            )}
            {lane?.isLoaded.value ? (
                <LaneView lane={lane} workspaceId={workspace.id} key={lane.sessionId} />
            ) : (
                !problem && <p class="notice quiet">Loading …</p>
            )}
        </>
    );
}

function LaneView({ lane, workspaceId }: { lane: LaneState; workspaceId: string }) {
    void lane.version.value;
    const now = useSignal(Date.now());
    const isTable = useSignal(false);
    const selected = useSignal("");
    const runs = lane.model.ordered();
    const hasLive = runs.some((run) => run.state !== "ended");
    const isFollowing = useSignal(hasLive);
    const hasMoved = useSignal(false);
    const view = useSignal<Span>(hasLive ? liveView(runs, now.value) : fitRuns(runs, now.value));
    const tickMs = useComputed(() => Math.min(TICK_MS_MAX, Math.max(TICK_MS_MIN, view.value.span / PIXELS)));
    useEffect(() => {
        if (!hasLive) return;
        now.value = Date.now();
        if (!hasMoved.value && !isFollowing.value) {
            view.value = liveView(runs, now.value);
            isFollowing.value = true;
        }
    }, [hasLive]);
    useEffect(() => {
        if (!hasLive) return;
        const timer = setInterval(() => {
            if (!document.hidden) now.value = Date.now();
        }, tickMs.value);
        return () => clearInterval(timer);
    }, [hasLive, tickMs.value]);
    if (runs.length === 0) return <p class="notice quiet">No run yet. The picture begins with the first prompt.</p>;

    const shown = isFollowing.value ? follow(view.value, now.value) : view.value;
    const scale = (factor: number) => (view.value = zoom(shown, factor, isFollowing.value ? 1 : 0.5));
    const both = { lane, workspaceId, now: now.value };
    return (
        <div class="lane" data-runs={runs.length}>
            <div class="lane-tools" role="toolbar" aria-label="Timeline">
                <div class="lane-zoom" hidden={isTable.value}>
                    <ZoomButton name="Zoom out" sign="−" onClick={() => scale(2)} />
                    <span class="lane-span" aria-label="Visible time">
                        {spanText(shown.span)}
                    </span>
                    <ZoomButton name="Zoom in" sign="+" onClick={() => scale(0.5)} />
                    <button
                        type="button"
                        class="button"
                        onClick={() => {
                            isFollowing.value = hasMoved.value = false;
                            view.value = fitRuns(runs, Date.now());
                        }}
                    >
                        Fit
                    </button>
                    {hasLive && (
                        <button
                            type="button"
                            class="button"
                            aria-pressed={isFollowing.value}
                            onClick={() => {
                                if (isFollowing.value) view.value = shown;
                                isFollowing.value = !isFollowing.value;
                                hasMoved.value = !isFollowing.value;
                            }}
                        >
                            Now
                        </button>
                    )}
                </div>
                <button
                    type="button"
                    class="button"
                    aria-pressed={isTable.value}
                    onClick={() => (isTable.value = !isTable.value)}
                >
                    Table
                </button>
            </div>
            {lane.model.nextBefore !== null && (
                <div class="lane-earlier">
                    {lane.mayLoadEarlier ? (
                        <button
                            type="button"
                            class="button-quiet"
                            disabled={lane.isLoadingEarlier.value}
                            onClick={() => void lane.loadEarlier()}
                        >
                            Load earlier runs
                        </button>
                    ) : (
                        <span class="quiet">Only the last {plural(runs.length, "run")} can be shown.</span>
                    )}
                </div>
            )}
            {isTable.value ? (
                <LaneTable {...both} />
            ) : (
                <LanePicture {...both} {...{ view, isFollowing, hasMoved, selected }} />
            )}
            {!isTable.value && <Legend />}
        </div>
    );
}

function ZoomButton({ name, sign, onClick }: { name: string; sign: string; onClick: () => void }) {
    return (
        <button type="button" class="icon-button" aria-label={name} title={`${name} (${sign})`} onClick={onClick}>
            {sign}
        </button>
    );
}

function liveView(runs: Parameters<typeof fitRuns>[0], now: number): Span {
    const live = runs.filter((run) => run.state !== "ended");
    const most = Math.max(LIVE_MS_MAX, fitRuns(live, now).span);
    const span = Math.min(most, Math.max(LIVE_MS_MIN, fitRuns(runs, now).span));
    return { from: now - span, span };
}

function spanText(ms: number): string {
    if (ms < 60_000) return duration(ms);
    const minutes = ms / 60_000;
    return minutes < 90 ? `${Math.round(minutes)} min` : `${(minutes / 60).toFixed(1)} h`;
}

/** What the shapes mean. */
function Legend() {
    return (
        <ul class="lane-legend" aria-label="Legend">
            {(Object.keys(PHASES) as Phase[]).map((phase) => (
                <li key={phase}>
                    <Glyph phase={phase} /> {PHASES[phase]}
                </li>
            ))}
            {(["reply", "call", "wait", "cancel"] as const).map((kind) => (
                <li key={kind}>
                    <span class={`lane-key lane-key-${kind}`} aria-hidden="true" /> {KINDS[kind]}
                </li>
            ))}
        </ul>
    );
}

const KINDS = { reply: "model", call: "tool", wait: "waits", cancel: "cancel" };
