/** Bars of a plot on a canvas. This module is loaded with the first plot, and uPlot with it. */

import UPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { heights, valueText, type Plot, type Series } from "../view/figures";
import { tokenCount } from "../view/number_text";

const HEIGHT_PX = 180;
/** The width of the labels at the left, in a font of 11 pixels. */
const AXIS_PX = 60;
/** The height of the labels below the bars. */
const LABELS_PX = 28;
/** A label below the bars needs this much. Pixels. */
const LABEL_PX = 74;
const LABEL_CHARS = 12;
const BAR_PX_MAX = 48;
/** The side of a tile of a striped or dotted bar. Pixels. */
const TILE_PX = 6;

/** Draw a plot into an element. Returns a function that removes it. */
export function drawBars(parent: HTMLElement, plot: Plot): () => void {
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const columns = heights(plot);
    // Of stacked bars the highest is drawn first, so that the others cover its lower part.
    const order = plot.series.map((_, index) => index);
    if (plot.kind === "stack") order.reverse();
    const line = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--text-quiet"), grid: line, ticks: line, font: "11px system-ui" };
    const count = plot.labels.length;
    const options: UPlot.Options = {
        width: Math.max(200, parent.clientWidth),
        height: HEIGHT_PX,
        legend: { show: false },
        cursor: { show: false },
        scales: {
            x: { time: false, range: () => [-0.6, Math.max(count - 0.4, 3.4)] },
            y: { range: (_, __, max) => [0, Math.max(max * 1.08, plot.unit === "usd" ? 0.01 : 1)] },
        },
        axes: [
            {
                ...axis,
                grid: { show: false },
                size: LABELS_PX,
                splits: (self) => labelPlaces(count, self.width - AXIS_PX),
                values: (_, places) => places.map((place) => shortLabel(plot, place)),
            },
            {
                ...axis,
                size: AXIS_PX,
                values: (_, values) =>
                    values.map((value) => (plot.unit === "count" && value % 1 !== 0 ? "" : axisText(value, plot))),
            },
        ],
        series: [
            {},
            ...order.map((index): UPlot.Series => {
                const one = plot.series[index];
                return {
                    paths: UPlot.paths.bars!({ size: [0.7, BAR_PX_MAX] }),
                    stroke: one ? colour(one.colour) : "",
                    width: 1,
                    fill: (self) => (one ? fill(self.ctx, one, colour(one.colour), colour("--surface")) : ""),
                    points: { show: false },
                };
            }),
        ],
    };
    const places = plot.labels.map((_, index) => index);
    const chart = new UPlot(options, [places, ...order.map((index) => columns[index] ?? [])], parent);
    const observer = new ResizeObserver(() => {
        const width = Math.max(200, parent.clientWidth);
        if (width !== chart.width) chart.setSize({ width, height: HEIGHT_PX });
    });
    observer.observe(parent);
    return () => {
        observer.disconnect();
        chart.destroy();
    };
}

function labelPlaces(count: number, width: number): number[] {
    const step = Math.max(1, Math.ceil((count * LABEL_PX) / Math.max(1, width)));
    return Array.from({ length: Math.ceil(count / step) }, (_, index) => index * step);
}

/** Of a day, month and day; of a path, its end. */
function shortLabel(plot: Plot, index: number): string {
    const label = plot.labels[index] ?? "";
    if (plot.by === "Day") return label.slice(5);
    const name = label.split("/").filter(Boolean).at(-1) ?? label;
    return name.length > LABEL_CHARS ? `${name.slice(0, LABEL_CHARS - 1)}…` : name;
}

function axisText(value: number, plot: Plot): string {
    if (plot.unit !== "count") return valueText(value, plot.unit);
    return value >= 10_000 ? tokenCount(value) : String(value);
}

function fill(
    context: CanvasRenderingContext2D,
    { style }: Series,
    colour: string,
    ground: string,
): string | CanvasPattern {
    if (style === "solid") return colour;
    const tile = document.createElement("canvas");
    const side = (tile.width = tile.height = TILE_PX * devicePixelRatio);
    const pen = tile.getContext("2d");
    if (!pen) return colour;
    pen.fillStyle = ground;
    pen.fillRect(0, 0, side, side);
    pen.fillStyle = pen.strokeStyle = colour;
    if (style === "light") {
        pen.globalAlpha = 0.3;
        pen.fillRect(0, 0, side, side);
    } else if (style === "dotted") {
        pen.fillRect(side / 4, side / 4, side / 2, side / 2);
    } else {
        pen.lineWidth = side / 3;
        for (const start of [-side, 0, side]) {
            pen.beginPath();
            pen.moveTo(start, side);
            pen.lineTo(start + side, 0);
            pen.stroke();
        }
    }
    return context.createPattern(tile, "repeat") ?? colour;
}
