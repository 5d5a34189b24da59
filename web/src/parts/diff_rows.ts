/** The rows of a diff: unified, or in pairs of the old and the new side. */

export interface DiffRow {
    /** `+`, `-` or a blank; `@` and a backslash for hunk headers and remarks. */
    sign: "+" | "-" | " " | "@" | "\\";
    text: string;
    /** Line numbers in the old and the new file; 0: none. */
    old: number;
    new: number;
}

export interface DiffPair {
    left: DiffRow | null;
    right: DiffRow | null;
}

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

export function diffRows(diff: string): DiffRow[] {
    const lines = diff.split("\n");
    if (lines.at(-1) === "") lines.pop();
    const rows: DiffRow[] = [];
    let old = 0;
    let current = 0;
    let isInHunk = false;
    for (const line of lines) {
        const hunk = HUNK.exec(line);
        const sign = line.charAt(0);
        const text = line.slice(1);
        if (hunk) {
            [old, current, isInHunk] = [Number(hunk[1]), Number(hunk[2]), true];
            rows.push({ sign: "@", text: line, old: 0, new: 0 });
        } else if (!isInHunk && /^(?:---|\+\+\+) /.test(line)) {
            continue; // the file name is shown above the diff
        } else if (sign === "+") {
            rows.push({ sign, text, old: 0, new: current++ });
        } else if (sign === "-") {
            rows.push({ sign, text, old: old++, new: 0 });
        } else if (sign === "\\") {
            rows.push({ sign, text: line, old: 0, new: 0 });
        } else {
            rows.push({ sign: " ", text, old: old++, new: current++ });
        }
    }
    return rows;
}

/** Put removed and added lines side by side. A hunk header or a remark is on both sides. */
export function diffPairs(rows: DiffRow[]): DiffPair[] {
    const pairs: DiffPair[] = [];
    let removed: DiffRow[] = [];
    let added: DiffRow[] = [];
    const flush = () => {
        for (let index = 0; index < Math.max(removed.length, added.length); index++) {
            pairs.push({ left: removed[index] ?? null, right: added[index] ?? null });
        }
        removed = [];
        added = [];
    };
    for (const row of rows) {
        if (row.sign === "-") {
            if (added.length > 0) flush();
            removed.push(row);
        } else if (row.sign === "+") {
            added.push(row);
        } else {
            flush();
            pairs.push({ left: row, right: row });
        }
    }
    flush();
    return pairs;
}
