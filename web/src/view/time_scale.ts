/** Time to pixels: a span of time across a width, how it is zoomed and moved, and the ticks of its axis. */

const SECOND_MS = 1_000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** The shortest and the longest span of a picture. Milliseconds. */
export const SPAN_MS_MIN = SECOND_MS;
export const SPAN_MS_MAX = DAY_MS;
/** Free space at the right of the last item, as a part of the span. */
const MARGIN = 0.08;
/** The distance between two labels of the axis is at least this. Pixels. */
const TICK_PX_MIN = 84;

/** The visible time, from `from` to `from + span`. Milliseconds. */
export interface Span {
    readonly from: number;
    readonly span: number;
}

export function limitSpan(span: number): number {
    return Math.min(SPAN_MS_MAX, Math.max(SPAN_MS_MIN, span));
}

export function toPixel(view: Span, width: number, time: number): number {
    return ((time - view.from) / view.span) * width;
}

export function toTime(view: Span, width: number, pixel: number): number {
    return view.from + (pixel / width) * view.span;
}

/** Zoom by a factor (below 1: closer) around a place of the view, which keeps its time. `at` is from 0 to 1. */
export function zoom(view: Span, factor: number, at: number): Span {
    const span = limitSpan(view.span * factor);
    return { from: view.from + (view.span - span) * at, span };
}

/** Move the view by a part of its span. */
export function pan(view: Span, part: number): Span {
    return { ...view, from: view.from + view.span * part };
}

/** Return the view of all times between two, or of the latest day of them. */
export function fit(start: number, end: number): Span {
    // Whole milliseconds: the span that is shown is the exact one, and twice as long after a zoom by 2.
    const span = limitSpan(Math.ceil((end - start) * (1 + 2 * MARGIN)));
    return { from: end + span * MARGIN - span, span };
}

/** Return the view of the same span that ends shortly after `now`. */
export function follow(view: Span, now: number): Span {
    return { ...view, from: now - view.span * (1 - MARGIN) };
}

/** Return the view moved so that a time is in it, or the same view if it is. */
export function reveal(view: Span, time: number): Span {
    const place = (time - view.from) / view.span;
    return place >= MARGIN && place <= 1 - MARGIN ? view : { ...view, from: time - view.span / 4 };
}

const STEPS_MS = [
    100,
    200,
    500,
    ...[1, 2, 5, 10, 15, 30].map((count) => count * SECOND_MS),
    ...[1, 2, 5, 10, 15, 30].map((count) => count * MINUTE_MS),
    ...[1, 2, 3, 6, 12].map((count) => count * HOUR_MS),
    DAY_MS,
];

export interface Tick {
    time: number;
    text: string;
}

/** Return the ticks of the axis, at round times of the zone that is `offsetMin` minutes ahead of UTC. */
export function ticks(view: Span, width: number, offsetMin: number): Tick[] {
    const least = (view.span / Math.max(1, width)) * TICK_PX_MIN;
    const step = STEPS_MS.find((candidate) => candidate >= least) ?? DAY_MS;
    const offset = offsetMin * MINUTE_MS;
    const all: Tick[] = [];
    const end = view.from + offset + view.span;
    for (let local = Math.ceil((view.from + offset) / step) * step; local <= end; local += step) {
        all.push({ time: local - offset, text: tickText(local, step) });
    }
    return all;
}

/** The time of day, or the date at midnight. `local` is a time of the zone as if it were UTC. */
function tickText(local: number, step: number): string {
    const text = new Date(local).toISOString();
    if (step >= MINUTE_MS && local % DAY_MS === 0) return text.slice(5, 10);
    if (step >= MINUTE_MS) return text.slice(11, 16);
    return step >= SECOND_MS ? text.slice(11, 19) : text.slice(14, 21);
}

/** Minutes by which the zone of this browser is ahead of UTC at a time. */
export function utcOffsetMin(time: number): number {
    return -new Date(time).getTimezoneOffset();
}
