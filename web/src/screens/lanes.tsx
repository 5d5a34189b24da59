/** The live Lanes of the server, read again while the page is visible. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call } from "../api/call";
import { RequestError } from "../api/http";
import type { LiveLaneBody } from "../api/types";
import { duration, folderName, oneLine, plural } from "../parts/format";
import { Header, ThemeButton } from "../parts/header";
import { Link } from "../parts/link";
import { lanePath, sessionPath } from "../state/route";
import { LANES_MAX } from "../state/server";

/** Milliseconds. */
const POLL_MS = 2_000;

export function LanesScreen({ onMenu }: { onMenu: () => void }) {
    const lanes = useSignal<LiveLaneBody[] | null>(null);
    const problem = useSignal("");
    useEffect(() => {
        const ending = new AbortController();
        void poll(ending.signal, (read, error) => {
            lanes.value = read ?? lanes.value;
            problem.value = error;
        });
        return () => ending.abort();
    }, []);
    const now = Date.now();
    const list = lanes.value ?? [];
    const asks = list.reduce((count, lane) => count + lane.asks, 0);
    const oldest = Math.min(now - 1_000, ...list.map((lane) => lane.active.accepted_at));
    return (
        <>
            <Header
                title="Live lanes"
                detail={`${plural(list.length, "lane")}${asks > 0 ? ` · ${plural(asks, "request")} for you` : ""}`}
                onMenu={onMenu}
            >
                <ThemeButton />
            </Header>
            {problem.value && (
                <p class="notice-line" role="alert">
                    {problem.value}
                </p>
            )}
            <div class="lanes">
                {lanes.value === null && !problem.value && <p class="quiet">Loading …</p>}
                {lanes.value?.length === 0 && (
                    <p class="quiet">Nothing runs on this server. A lane appears here when a session gets a prompt.</p>
                )}
                <ul class="lanes-list">
                    {inOrder(list).map((lane) => (
                        <LaneCard key={lane.session_id} lane={lane} now={now} oldest={oldest} />
                    ))}
                </ul>
            </div>
        </>
    );
}

/** Those that wait for the user first, then by the start of their Run. */
function inOrder(lanes: readonly LiveLaneBody[]): LiveLaneBody[] {
    const key = (lane: LiveLaneBody) => lane.asked_at ?? Number.MAX_SAFE_INTEGER;
    return [...lanes].sort((a, b) => key(a) - key(b) || a.active.accepted_at - b.active.accepted_at);
}

function LaneCard({ lane, now, oldest }: { lane: LiveLaneBody; now: number; oldest: number }) {
    const { active } = lane;
    const begun = active.started_at ?? now;
    const place = (time: number) => Math.max(0, Math.min(100, ((time - oldest) / Math.max(1, now - oldest)) * 100));
    const [accepted, start] = [place(active.accepted_at), place(begun)];
    const waits = lane.asks > 0;
    return (
        <li class={`lanes-card${waits ? " is-waiting" : ""}`} data-session={lane.session_id}>
            <Link class="lanes-title" to={sessionPath(lane.workspace_id, lane.session_id)}>
                {oneLine(lane.title) || "New session"}
            </Link>
            <span class="lanes-place" title={lane.path}>
                {folderName(lane.path)}
                {lane.parent_run_id && " · child agent"}
            </span>
            <Link
                class="button lanes-open"
                to={lanePath(lane.workspace_id, lane.session_id)}
                aria-label={`Lane of ${oneLine(lane.title) || "New session"}`}
            >
                Lane
            </Link>
            <span class="lanes-prompt">
                #{active.seq} {oneLine(active.prompt)}
            </span>
            <svg class="lanes-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                <rect class="lane-queue" x={accepted} y={4} width={start - accepted} height={2} />
                <rect class="lanes-active" x={start} y={1} width={Math.max(0.5, 100 - start)} height={8} />
            </svg>
            <span class="lanes-figures">
                {waits && (
                    <strong>
                        {plural(lane.asks, "request")} for you
                        {lane.asked_at !== undefined && `, since ${duration(now - lane.asked_at)}`}
                    </strong>
                )}
                <span>{active.stopping ? "stopping" : `running ${duration(now - begun)}`}</span>
                <span>{plural(active.step_count, "step")}</span>
                <span>{lane.queued} queued</span>
                {lane.folded > 0 && <span>{lane.folded} folded</span>}
                {active.usage.cost_usd >= 0.0005 && <span>${active.usage.cost_usd.toFixed(3)}</span>}
            </span>
        </li>
    );
}

/** Read the Lanes until `signal`, at once when the page becomes visible again. */
async function poll(signal: AbortSignal, report: (lanes: LiveLaneBody[] | null, error: string) => void): Promise<void> {
    while (!signal.aborted) {
        if (!document.hidden) {
            try {
                report(await call("get", "/v1/lanes", { query: { limit: LANES_MAX }, signal }), "");
            } catch (error) {
                if (signal.aborted) return;
                if (!(error instanceof RequestError)) throw error;
                // The banner shows that the server is away; the last state stays.
                report(null, error.isTransient ? "" : error.message);
            }
        }
        await new Promise<void>((resolve) => {
            const timer = setTimeout(resolve, POLL_MS);
            document.addEventListener("visibilitychange", () => resolve(), { once: true, signal });
            signal.addEventListener("abort", () => {
                clearTimeout(timer);
                resolve();
            });
        });
    }
}
