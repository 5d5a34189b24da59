/** Numbers for users. A port of `client/view/number_text.py`. */

/** From here on a count is written in millions: it would round to 1000k. Tokens. */
const MILLIONS_FROM = 999_500;

/** Return `950`, `2.4k`, `64k`, `1.1M`. */
export function tokenCount(count: number): string {
    if (count < 1000) return String(count);
    const [value, unit] = count >= MILLIONS_FROM ? [count / 1_000_000, "M"] : [count / 1000, "k"];
    return `${Number(value.toFixed(value < 9.95 ? 1 : 0))}${unit}`;
}

/** Return `12 s`, `1 min`, `3 min 20 s`. */
export function duration(seconds: number): string {
    const [minutes, rest] = [Math.floor(seconds / 60), seconds % 60];
    if (minutes === 0) return `${rest} s`;
    return rest === 0 ? `${minutes} min` : `${minutes} min ${rest} s`;
}
