/** Short messages to the user: errors of requests, and results that nothing else shows. */

import { signal } from "@preact/signals";
import { RequestError } from "../api/http";

export type NoticeKind = "information" | "warning" | "error";

export interface Notice {
    id: number;
    text: string;
    kind: NoticeKind;
}

/** How long a notice stays: long enough to read two lines; errors until they are closed. Milliseconds. */
const SHOWN_MS: Record<NoticeKind, number> = { information: 6_000, warning: 10_000, error: 30_000 };
/** Notices on the screen: more would cover it. Items, the oldest are dropped first. */
const NOTICES_MAX = 4;
/** Length of a notice: two lines on a phone are about 100. Characters. */
const NOTICE_CHARS_MAX = 500;

export const notices = signal<Notice[]>([]);
let last = 0;

/** Show a line of text. The same text is not shown twice. */
export function notify(text: string, kind: NoticeKind = "information"): void {
    const line = asLine(text);
    const others = notices.value.filter((notice) => notice.text !== line);
    const id = ++last;
    notices.value = [...others, { id, text: line, kind }].slice(-NOTICES_MAX);
    setTimeout(() => closeNotice(id), SHOWN_MS[kind]);
}

export function closeNotice(id: number): void {
    notices.value = notices.value.filter((notice) => notice.id !== id);
}

/** Await an act of the user. An error of its request is shown; then the result is undefined. */
export async function reported<T>(act: Promise<T>): Promise<T | undefined> {
    try {
        return await act;
    } catch (error) {
        if (!(error instanceof RequestError)) throw error;
        notify(error.message, "error");
        return undefined;
    }
}

function asLine(text: string): string {
    const line = text
        .slice(0, 4 * NOTICE_CHARS_MAX)
        .trim()
        .replace(/\s+/g, " ");
    return line.length <= NOTICE_CHARS_MAX ? line : `${line.slice(0, NOTICE_CHARS_MAX - 1)}…`;
}
