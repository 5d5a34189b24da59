/** The picture of a Lane as SVG. What it shows is computed by `view/lane_layout.ts`. */

import type { CancelLine, Item, Picture, Row } from "../view/lane_layout";
import { toPixel, type Span, type Tick } from "../view/time_scale";
import { GlyphPath } from "./lane_glyph";

/** The sizes of a row. Pixels. */
export interface RowSize {
    height: number;
    /** From the top of the row to the middle of its bar. */
    middle: number;
}

export const WIDE_ROW: RowSize = { height: 32, middle: 16 };
/** On a narrow screen the label is above the bar. */
export const NARROW_ROW: RowSize = { height: 52, middle: 36 };
/** Half of the height of an active Run. */
const HALF_PX = 8;
/** The width of the text of a cancel. */
const CANCEL_TEXT_PX = 110;

const TILE = { patternUnits: "userSpaceOnUse" } as const;

interface Props {
    picture: Picture;
    size: RowSize;
    width: number;
    /** The rows to draw: those in the view. */
    from: number;
    to: number;
    ticks: Tick[];
    view: Span;
    /** The present; null: nothing is live. */
    now: number | null;
    selected: string;
}

export function LaneSvg(props: Props) {
    const { picture, size, width, view } = props;
    const height = (picture.rows.length + 1) * size.height; // one more, for the text of a cancel
    const nowX = props.now === null ? -1 : toPixel(view, width, props.now);
    const rows = picture.rows.slice(props.from, props.to);
    const lines = picture.lines.filter((line) => line.last >= props.from - 1 && line.first <= props.to);
    return (
        <svg class="lane-svg" width={width} height={height} aria-hidden="true">
            <defs>
                <pattern id="lane-wait" {...TILE} width="5" height="5" patternTransform="rotate(45)">
                    <rect width="2" height="5" class="lane-wait-stripe" />
                </pattern>
                <pattern id="lane-error" {...TILE} width="4" height="4" patternTransform="rotate(-45)">
                    <rect width="4" height="4" class="lane-error-ground" />
                    <rect width="1.5" height="4" class="lane-error-stripe" />
                </pattern>
            </defs>
            {props.ticks.map(({ time }) => {
                const x = toPixel(view, width, time);
                return <line key={time} class="lane-grid" x1={x} x2={x} y1={0} y2={height} />;
            })}
            {rows.map((row) => (
                <RowShapes
                    key={row.run.run_id}
                    row={row}
                    size={size}
                    isSelected={row.run.run_id === props.selected}
                    width={width}
                />
            ))}
            {lines.map((line) => (
                <CancelShape key={`${line.cancel.runId} ${line.cancel.at}`} line={line} size={size} width={width} />
            ))}
            {nowX >= 0 && nowX <= width && <line class="lane-now" x1={nowX} x2={nowX} y1={0} y2={height} />}
        </svg>
    );
}

function RowShapes(props: { row: Row; size: RowSize; isSelected: boolean; width: number }) {
    const { row, size } = props;
    const top = row.index * size.height;
    const y = top + size.middle;
    const { run, queue, active, folded, join } = row;
    const looks = [`lane-row-${row.phase}`, row.index % 2 ? "is-odd" : "", props.isSelected ? "is-selected" : ""];
    return (
        <g
            class={`lane-row ${looks.join(" ")}`}
            data-run={run.run_id}
            data-seq={run.seq}
            data-phase={row.phase}
            data-covered-by={row.coveredBy.join(" ")}
        >
            <rect class="lane-row-ground" x={0} y={top} width={props.width} height={size.height} />
            {queue && <rect class="lane-queue" data-part="queue" {...queue} y={y - 1.5} height={3} />}
            {active && (
                <rect class="lane-active" data-part="active" {...active} y={y - HALF_PX} height={2 * HALF_PX} rx={1} />
            )}
            {row.acceptedX !== null && (
                <circle class="lane-accepted" data-part="accepted" cx={row.acceptedX} cy={y} r={3} />
            )}
            {folded && (
                <line class="lane-folded" data-part="folded" x1={folded.x} x2={folded.x + folded.width} y1={y} y2={y} />
            )}
            {row.items.map((item) => (
                <ItemShape key={`${item.kind} ${item.key}`} item={item} y={y} />
            ))}
            {join && <JoinShape x={join.x} y={y} hostY={join.host * size.height + size.middle} />}
            {row.notes.map(({ kind, x }) => (
                <path key={`${kind} ${x}`} class="lane-note" data-part={kind} d={`M${x - 4} ${y - 7} h8 l-4 5 Z`} />
            ))}
            {row.endX !== null && <GlyphPath phase={row.phase} x={row.endX + 11} y={y} />}
        </g>
    );
}

/** Replies are the upper half of the bar, calls the lower half. */
function ItemShape({ item, y }: { item: Item; y: number }) {
    const top = item.kind === "reply" ? y - HALF_PX + 2 : y + 1;
    return (
        <rect
            class={`lane-item lane-${item.kind}${item.isError ? " is-error" : ""}`}
            data-item={item.key}
            data-part={item.kind}
            x={item.x}
            y={top}
            width={item.width}
            height={HALF_PX - 3}
            rx={1}
        />
    );
}

/** The line from a folded Run up or down to the bar of its host. */
function JoinShape({ x, y, hostY }: { x: number; y: number; hostY: number }) {
    const isUp = hostY < y;
    const end = isUp ? hostY + HALF_PX + 1 : hostY - HALF_PX - 1;
    const back = isUp ? end + 5 : end - 5;
    const head = `M${x - 4} ${back} L${x} ${end} L${x + 4} ${back}`;
    return <path class="lane-join" data-part="join" d={`M${x} ${y} V${end} ${head}`} />;
}

function CancelShape({ line, size, width }: { line: CancelLine; size: RowSize; width: number }) {
    const top = line.first * size.height;
    const bottom = (line.last + 1) * size.height;
    const { x, isStepped, cancel } = line;
    // Below the line and left of it is nothing: all Runs there were accepted after the cancel.
    const isLeft = x > CANCEL_TEXT_PX;
    const textY = isLeft ? bottom + size.middle + 4 : bottom - 4;
    return (
        <g
            class="lane-cancel"
            data-cancel={line.number}
            data-mark={cancel.mark ?? ""}
            data-covers={line.covered.join(" ")}
            data-first-row={line.first}
            data-last-row={line.last}
        >
            <path class="lane-cancel-line" d={`M${x} ${top} V${bottom}${isStepped ? ` H${width}` : ""}`} />
            <path class="lane-cancel-head" d={`M${x - 5} ${top} h10 l-5 6 Z`} />
            {isStepped && (
                <text class={`lane-cancel-text${isLeft ? " is-left" : ""}`} x={isLeft ? x - 8 : x + 24} y={textY}>
                    cancel up to #{cancel.mark}
                </text>
            )}
        </g>
    );
}
