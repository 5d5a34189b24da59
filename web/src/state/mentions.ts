/** Names in a prompt: `@file`, `@server:uri` and `/command`. A port of `tui/state/mentions.py`. */

/** Names offered at once: typing is faster than scrolling a longer list. Items. */
export const OFFERED_MAX = 30;

const PARTIAL = /(?:^|\s)(@(?:"([^"\n]*)|([^\s"]*)))$/;
const COMPLETE = /(?<!\S)@(?:"([^"\n]+)"|(\S+))/g;
/** Punctuation of a sentence after a name. */
const PUNCTUATION = /[.,;:!?)\]}'"]+$/;

export interface Partial {
    /** Where it starts in the text. */
    start: number;
    kind: "mention" | "command";
    word: string;
}

/** Return the name being typed at the end of the text. A command is the first word of a prompt. */
export function partialName(before: string): Partial | null {
    const command = /^\/([^\s/]*)$/.exec(before);
    if (command) return { start: 0, kind: "command", word: command[1] ?? "" };
    const line = before.slice(before.lastIndexOf("\n") + 1);
    const match = PARTIAL.exec(line);
    if (!match) return null;
    return { start: before.length - (match[1] ?? "").length, kind: "mention", word: match[2] ?? match[3] ?? "" };
}

export function mention(name: string): string {
    return /\s/.test(name) ? `@"${name}"` : `@${name}`;
}

/** Return the known names that the text mentions, each once. */
export function mentioned(text: string, known: ReadonlySet<string>): string[] {
    const names = new Set<string>();
    for (const [, quoted, bare] of text.matchAll(COMPLETE)) {
        const candidates = quoted !== undefined ? [quoted] : [bare ?? "", (bare ?? "").replace(PUNCTUATION, "")];
        const name = candidates.find((candidate) => known.has(candidate));
        if (name) names.add(name);
    }
    return [...names];
}

/** Return the names that contain all letters of the word in this order, the best match first. */
export function bestMatches(word: string, names: readonly string[]): string[] {
    const letters = word.toLowerCase();
    const ranked: { rank: readonly [number, number, number]; name: string }[] = [];
    for (const name of names) {
        const rank = rankOf(letters, name.toLowerCase());
        if (rank) ranked.push({ rank, name });
    }
    ranked.sort(
        (a, b) => a.rank[0] - b.rank[0] || a.rank[1] - b.rank[1] || a.rank[2] - b.rank[2] || (a.name < b.name ? -1 : 1),
    );
    return ranked.slice(0, OFFERED_MAX).map(({ name }) => name);
}

/** Return a sort key, lower for a better match; null: no match. */
function rankOf(letters: string, name: string): readonly [number, number, number] | null {
    let index = -1;
    for (const letter of letters) {
        index = name.indexOf(letter, index + 1);
        if (index < 0) return null;
    }
    const last = name.slice(name.lastIndexOf("/") + 1);
    const kind = last.startsWith(letters) ? 0 : last.includes(letters) ? 1 : name.includes(letters) ? 2 : 3;
    return [kind, name.split("/").length, name.length];
}
