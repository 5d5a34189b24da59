/** What language servers and hooks report about a tool call. A port of `wire/result_notes.py`. */

/** Lines of each kind on a screen. */
const NOTE_LINES_MAX = 5;

export interface ResultNote {
    kind: "error" | "warning" | "hook";
    /** One line. It may hold any characters. */
    text: string;
}

/** Return the new diagnostics of an edit, and what hooks report to the user. */
export function resultNotes(metadata: Record<string, unknown>): ResultNote[] {
    const diagnostics = listed(metadata["diagnostics"]).flatMap(diagnostic);
    const hooks = listed(metadata["hooks"]).flatMap((one): ResultNote[] =>
        typeof one === "string" ? [{ kind: "hook", text: line(one) }] : [],
    );
    return [...limited(diagnostics, "diagnostics"), ...limited(hooks, "messages of hooks")];
}

function diagnostic(one: unknown): ResultNote[] {
    if (typeof one !== "object" || one === null || Array.isArray(one)) return [];
    const { path, line: number, severity, message, source } = one as Record<string, unknown>;
    const end = source ? ` [${String(source)}]` : "";
    const text = `${String(path)}:${String(number)}: ${String(severity)}: ${String(message)}${end}`;
    return [{ kind: severity === "error" ? "error" : "warning", text: line(text) }];
}

function listed(value: unknown): unknown[] {
    return Array.isArray(value) ? value : [];
}

function line(text: string): string {
    return text.trim().split(/\s+/).join(" ");
}

function limited(notes: ResultNote[], what: string): ResultNote[] {
    const first = notes[0];
    if (first === undefined || notes.length <= NOTE_LINES_MAX) return notes;
    const kept = notes.slice(0, NOTE_LINES_MAX - 1);
    return [...kept, { kind: first.kind, text: `${notes.length - kept.length} more ${what}` }];
}
