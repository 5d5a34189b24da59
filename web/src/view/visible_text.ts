/** Untrusted text in which nothing is hidden, for approvals. A port of `core/untrusted_text.py`. */

/** Control, format (bidi, zero-width), private, unassigned, separators, fillers and variation selectors. */
const INVISIBLE = new RegExp(
    "[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Cn}\\p{Zl}\\p{Zp}\\p{Zs}" +
        "\\u115f\\u1160\\u3164\\uffa0\\u2800\\u034f\\u17b4\\u17b5" +
        "\\ufe00-\\ufe0f\\u180b-\\u180f\\u{e0100}-\\u{e01ef}]",
    "gu",
);
/** Combining marks on one letter that are drawn: no script needs more, and a higher stack covers other lines. */
const MARKS_MAX = 3;
const STACKED = new RegExp(`(\\p{M}{${MARKS_MAX}})(\\p{M}+)`, "gu");
const LONELY = /(^|[^\p{L}\p{N}\p{M}])(\p{M}+)/gu;
const LAST_BLANK = /[ \t](?=\n|$)/g;

/** Return the text with invisible characters escaped as \u{...}. `keep`: characters that stay. */
export function visible(text: string, keep = "\n\t", markEnds = true): string {
    const shown = text
        .replace(INVISIBLE, (one) => (one === " " || keep.includes(one) ? one : escape(one)))
        .replace(LONELY, (_, before: string, marks: string) => before + escapeAll(marks))
        .replace(STACKED, (_, first: string, rest: string) => first + escapeAll(rest));
    return markEnds ? shown.replace(LAST_BLANK, escape) : shown;
}

/** Return the lines of a unified diff, each without its leading sign made visible. */
export function visibleDiff(diff: string): string {
    const lines = diff.split("\n").map((line) => line.slice(0, 1) + visible(line.slice(1), "\t"));
    return lines.join("\n");
}

/** Return the start of the text as one line in which nothing is hidden. */
export function visibleLine(text: string, charsMax = 300): string {
    const words = text
        .slice(0, 4 * charsMax)
        .trim()
        .split(/\s+/)
        .join(" ");
    const line = visible(words, "");
    return line.length <= charsMax ? line : `${line.slice(0, charsMax - 1)}…`;
}

function escape(character: string): string {
    return `\\u{${character.codePointAt(0)?.toString(16)}}`;
}

function escapeAll(text: string): string {
    return [...text].map(escape).join("");
}
