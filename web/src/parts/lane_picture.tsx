/** The timeline of a session: axis, labels, picture, and the details of what is pointed at. */

import { useSignal, type Signal } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { LaneRunBody } from "../api/types";
import { navigate, sessionPath } from "../state/route";
import type { LaneState } from "../state/lane";
import { layOut, phaseOf, type Picture } from "../view/lane_layout";
import { follow, pan, reveal, ticks, toPixel, utcOffsetMin, zoom, type Span } from "../view/time_scale";
import { oneLine } from "./format";
import { Glyph } from "./lane_glyph";
import { PictureGestures } from "./lane_gestures";
import { LaneSvg, NARROW_ROW, WIDE_ROW } from "./lane_svg";
import { callText, cancelText, runText, stepText } from "./lane_texts";
import { Link } from "./link";

/** Below this width labels are above the bars. Pixels. */
const NARROW_PX = 640;
/** Rows beyond the visible ones that are drawn. Items. */
const SPARE_ROWS = 4;
/** Half of the width of a label of the axis. Pixels. */
const TICK_EDGE_PX = 26;

export interface Controls {
    view: Signal<Span>;
    isFollowing: Signal<boolean>;
    /** The user has moved the picture: it does not follow new Runs. */
    hasMoved: Signal<boolean>;
    selected: Signal<string>;
}

interface Props extends Controls {
    lane: LaneState;
    workspaceId: string;
    now: number;
}

/** The message of a Run in the transcript; of its host if it was folded; empty if it has none. */
export function messageOf(run: LaneRunBody, runs: ReadonlyMap<string, LaneRunBody>): string {
    const host = run.folded_into ? runs.get(run.folded_into) : undefined;
    return run.steps[0]?.message_id ?? run.message_id ?? host?.steps[0]?.message_id ?? host?.message_id ?? "";
}

export function LanePicture(props: Props) {
    const { lane, now, view, isFollowing, selected } = props;
    const hovered = useSignal("");
    const width = useSignal(0);
    const scrolled = useSignal({ top: 0, height: 600 });
    const scroller = useRef<HTMLDivElement>(null);
    const plot = useRef<HTMLDivElement>(null);
    const isNarrow = useSignal(false);
    void lane.version.value;
    const runs = lane.model.ordered();
    const byId = useMemo(() => new Map(runs.map((run) => [run.run_id, run])), [runs]);
    const size = isNarrow.value ? NARROW_ROW : WIDE_ROW;
    const span = isFollowing.value ? follow(view.value, now) : view.value;
    const picture = layOut(runs, { view: span, width: width.value, now });
    useSize(scroller, plot, width, scrolled, isNarrow);
    useEndOfRows(scroller, runs.length, isFollowing.value);

    const current = useRef(span);
    current.current = span;
    const gestures = useMemo(
        () =>
            new PictureGestures({
                view: () => current.current,
                change: (next, isMoved) => {
                    if (isMoved) stopFollowing(props);
                    view.value = current.current = next;
                },
                box: () => plot.current?.getBoundingClientRect() ?? new DOMRect(),
            }),
        [],
    );
    const path = (run: LaneRunBody) => sessionPath(props.workspaceId, lane.sessionId, messageOf(run, byId));
    const rowAt = (event: MouseEvent) => {
        const top = plot.current?.getBoundingClientRect().top ?? 0;
        return runs[Math.floor((event.clientY - top) / size.height)];
    };
    const select = (run: LaneRunBody | undefined) => {
        if (!run) return;
        selected.value = run.run_id;
        if (!isFollowing.value) view.value = reveal(view.value, run.started_at ?? run.accepted_at);
    };
    const marks = ticks(span, width.value, utcOffsetMin(span.from));
    const from = Math.max(0, Math.floor(scrolled.value.top / size.height) - SPARE_ROWS);
    const to = Math.ceil((scrolled.value.top + scrolled.value.height) / size.height) + SPARE_ROWS;
    const hasLive = runs.some((run) => run.state !== "ended");
    const labels = useMemo(
        () => <Labels runs={runs} byId={byId} path={path} selected={selected.value} onSelect={select} />,
        [runs, selected.value],
    );
    return (
        <div class="lane-box" data-span={Math.round(span.span)} data-following={isFollowing.value}>
            <div
                class={`lane-scroll${isNarrow.value ? " is-narrow" : ""}`}
                ref={scroller}
                onWheel={(event) => {
                    const frame = event.currentTarget;
                    const isOnAxis = (event.target as Element).closest(".lane-axis") !== null;
                    const mayScroll = !isOnAxis && frame.scrollHeight > frame.clientHeight + 1;
                    if (gestures.wheel(event, mayScroll)) event.preventDefault();
                }}
                onKeyDown={(event) => keyPressed(event, props, span, runs, select)}
            >
                <div class="lane-axis">
                    <span class="lane-axis-name">{runs.length} runs</span>
                    <svg width={width.value} height={24} aria-hidden="true">
                        {marks.map(({ time, text }) => {
                            const x = toPixel(span, width.value, time);
                            if (x < TICK_EDGE_PX || x > width.value - TICK_EDGE_PX) return null; // would be cut off
                            return (
                                <text key={time} x={x} y={16} class="lane-tick">
                                    {text}
                                </text>
                            );
                        })}
                    </svg>
                </div>
                <div class="lane-body">
                    {labels}
                    <div
                        class="lane-plot"
                        ref={plot}
                        onPointerDown={(event) => gestures.down(event)}
                        onPointerMove={(event) => {
                            gestures.move(event);
                            const target = event.target as Element;
                            const mark = target.closest("[data-cancel]")?.getAttribute("data-cancel");
                            const key = mark ? `cancel ${mark}` : target.getAttribute("data-item");
                            hovered.value = key ?? rowAt(event)?.run_id ?? "";
                        }}
                        onPointerUp={(event) => gestures.up(event)}
                        onPointerCancel={(event) => gestures.up(event)}
                        onPointerLeave={(event) => {
                            gestures.up(event);
                            hovered.value = "";
                        }}
                        onClick={(event) => {
                            const run = rowAt(event);
                            if (run && !gestures.wasDrag) navigate(path(run));
                        }}
                    >
                        <LaneSvg
                            picture={picture}
                            size={size}
                            width={width.value}
                            from={from}
                            to={to}
                            ticks={marks}
                            view={span}
                            now={hasLive ? now : null}
                            selected={selected.value}
                        />
                    </div>
                </div>
            </div>
            <p class="lane-details">{detailsOf(hovered.value || selected.value, picture, byId, now)}</p>
        </div>
    );
}

function Labels(props: {
    runs: LaneRunBody[];
    byId: ReadonlyMap<string, LaneRunBody>;
    path: (run: LaneRunBody) => string;
    selected: string;
    onSelect: (run: LaneRunBody) => void;
}) {
    const last = props.runs.at(-1)?.run_id ?? "";
    const reachable = props.byId.has(props.selected) ? props.selected : last;
    return (
        <ol class="lane-labels" aria-label="Runs">
            {props.runs.map((run) => (
                <li key={run.run_id} onFocusIn={() => props.onSelect(run)} data-label={run.run_id}>
                    <Link
                        to={props.path(run)}
                        class={`lane-label${run.run_id === props.selected ? " is-selected" : ""}`}
                        tabIndex={run.run_id === reachable ? 0 : -1}
                    >
                        <span class="lane-seq">{run.seq}</span>
                        <Glyph phase={phaseOf(run)} />
                        <span class="lane-prompt">{oneLine(run.prompt)}</span>
                        <span class="visually-hidden">. {runText(run, props.byId, Date.now())}</span>
                    </Link>
                </li>
            ))}
        </ol>
    );
}

function detailsOf(key: string, picture: Picture, byId: ReadonlyMap<string, LaneRunBody>, now: number): string {
    const runs = picture.rows.map((row) => row.run);
    const line = picture.lines.find((one) => `cancel ${one.number}` === key);
    if (line) return cancelText(line.cancel, runs, now);
    const run = byId.get(key);
    if (run) return `${runText(run, byId, now)} · ${oneLine(run.prompt)}`;
    for (const row of picture.rows) {
        const item = row.items.find((one) => one.key === key);
        if (item) return `#${row.run.seq} · ${item.call ? callText(item.call, now) : stepText(item.step, now)}`;
    }
    if (matchMedia("(pointer: coarse)").matches) return "Tap a run to open it. Pinch to zoom, drag to move.";
    return "Point at a run for its details. Wheel, pinch, + and - zoom; drag and the arrow keys move.";
}

function stopFollowing({ isFollowing, hasMoved }: Controls): void {
    isFollowing.value = false;
    hasMoved.value = true;
}

function keyPressed(
    event: KeyboardEvent,
    controls: Controls,
    span: Span,
    runs: LaneRunBody[],
    select: (run: LaneRunBody | undefined) => void,
): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view, isFollowing, selected } = controls;
    const index = runs.findIndex((run) => run.run_id === selected.value);
    const to = (place: number) => {
        const run = runs[Math.min(runs.length - 1, Math.max(0, place))];
        select(run);
        const selector = `[data-label="${CSS.escape(run?.run_id ?? "")}"] a`;
        (event.currentTarget as Element).querySelector<HTMLElement>(selector)?.focus();
    };
    const move = (part: number) => {
        stopFollowing(controls);
        view.value = pan(span, part);
    };
    const acts: Record<string, () => void> = {
        "+": () => (view.value = zoom(span, 0.5, isFollowing.value ? 1 : 0.5)),
        "=": () => (view.value = zoom(span, 0.5, isFollowing.value ? 1 : 0.5)),
        "-": () => (view.value = zoom(span, 2, isFollowing.value ? 1 : 0.5)),
        ArrowLeft: () => move(-0.1),
        ArrowRight: () => move(0.1),
        PageUp: () => move(-0.9),
        PageDown: () => move(0.9),
        ArrowUp: () => to(index < 0 ? runs.length - 1 : index - 1),
        ArrowDown: () => to(index < 0 ? runs.length - 1 : index + 1),
        Home: () => to(0),
        End: () => to(runs.length - 1),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
}

/** Measure the picture and the visible rows. */
function useSize(
    scroller: { current: HTMLDivElement | null },
    plot: { current: HTMLDivElement | null },
    width: Signal<number>,
    scrolled: Signal<{ top: number; height: number }>,
    isNarrow: Signal<boolean>,
): void {
    useLayoutEffect(() => {
        const frame = scroller.current;
        if (!frame) return;
        const measure = () => {
            isNarrow.value = frame.clientWidth < NARROW_PX;
            width.value = plot.current?.clientWidth ?? 0;
            scrolled.value = { top: frame.scrollTop, height: frame.clientHeight };
        };
        const observer = new ResizeObserver(measure);
        observer.observe(frame);
        if (plot.current) observer.observe(plot.current);
        frame.addEventListener("scroll", measure, { passive: true });
        measure();
        return () => {
            observer.disconnect();
            frame.removeEventListener("scroll", measure);
        };
    }, []);
}

/** Show the last row at first, and each new one while the present is followed. */
function useEndOfRows(scroller: { current: HTMLDivElement | null }, count: number, isFollowing: boolean): void {
    const isFirst = useRef(true);
    useLayoutEffect(() => {
        const frame = scroller.current;
        if (!frame || count === 0 || (!isFirst.current && !isFollowing)) return;
        isFirst.current = false;
        frame.scrollTop = frame.scrollHeight;
    }, [count, isFollowing]);
}
