/** Short texts for users. */

import { duration as wholeSeconds } from "../view/number_text";

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** How long ago a time was: `now`, `5 min`, `3 h`, `2 d`, or the date. */
export function ago(timeMs: number, nowMs: number = Date.now()): string {
    const past = nowMs - timeMs;
    if (past < MINUTE_MS) return "now";
    if (past < HOUR_MS) return `${Math.floor(past / MINUTE_MS)} min`;
    if (past < DAY_MS) return `${Math.floor(past / HOUR_MS)} h`;
    if (past < 7 * DAY_MS) return `${Math.floor(past / DAY_MS)} d`;
    return new Date(timeMs).toLocaleDateString();
}

/** A duration: `0.4 s`, `12 s`, `1 min`, `3 min 20 s`. */
export function duration(ms: number): string {
    const seconds = Math.max(0, ms) / 1000;
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    return wholeSeconds(Math.round(seconds));
}

/** The last name of a path. */
export function folderName(path: string): string {
    return path.split("/").filter(Boolean).at(-1) ?? path;
}

/** Text of a model or a file as one line: control characters and direction marks could disguise it. */
export function oneLine(text: string, charsMax = 200): string {
    const line = text
        .slice(0, 4 * charsMax)
        .replace(/[\p{Cc}\u2028\u2029]+/gu, " ")
        .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "")
        .trim();
    return line.length > charsMax ? `${line.slice(0, charsMax - 1)}…` : line;
}

export function plural(count: number, noun: string): string {
    return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
