/** Colours of code. The library is loaded when the first complete block of code is shown, and one block at a time. */

import type { HLJSApi } from "highlight.js";
import { sanitise } from "./markdown";

let library: Promise<HLJSApi> | null = null;
const waiting: [HTMLElement, string][] = [];
let isBusy = false;

export function highlight(code: HTMLElement, language: string): void {
    waiting.push([code, language]);
    if (!isBusy) void work();
}

async function work(): Promise<void> {
    isBusy = true;
    try {
        library ??= import("highlight.js/lib/common").then((module) => module.default);
        const hljs = await library;
        for (let next = waiting.shift(); next; next = waiting.shift()) {
            const [code, language] = next;
            if (!hljs.getLanguage(language)) continue;
            const coloured = hljs.highlight(code.textContent ?? "", { language, ignoreIllegals: true });
            code.replaceChildren(sanitise(coloured.value));
            await idle();
        }
    } catch {
        library = null; // the server is away: the code stays plain, and the next block tries again
        waiting.length = 0;
    }
    isBusy = false;
}

function idle(): Promise<void> {
    return new Promise((resolve) => {
        if ("requestIdleCallback" in globalThis) requestIdleCallback(() => resolve(), { timeout: 200 });
        else setTimeout(resolve, 16);
    });
}
