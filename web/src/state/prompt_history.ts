/** Earlier prompts of a workspace, which the prompt shows with Up and Down. */

import { HISTORY, isTexts, readStored, writeStored } from "./storage";

/** Prompts in the history. Items, the oldest are dropped first. */
const HISTORY_MAX = 100;
/** Longer prompts are not stored: all of them have to fit into the 5 MB that a browser stores. Characters. */
const STORED_PROMPT_CHARS_MAX = 5_000;

export class PromptHistory {
    private readonly name: string;
    private earlier: string[];
    /** Index of the shown entry. One past the last is the text being written, which is kept in `draft`. */
    private index: number;
    private draft = "";

    constructor(
        workspaceId: string,
        private readonly storage: Storage = localStorage,
    ) {
        this.name = HISTORY + workspaceId;
        this.earlier = readStored(storage, this.name, isTexts) ?? [];
        this.index = this.earlier.length;
    }

    /** Add a prompt, unless it repeats the last one. */
    add(text: string): void {
        if (text.trim() && this.earlier.at(-1) !== text) {
            this.earlier = [...this.earlier, text].slice(-HISTORY_MAX);
            const short = this.earlier.filter((one) => one.length <= STORED_PROMPT_CHARS_MAX);
            writeStored(this.storage, this.name, short);
        }
        this.index = this.earlier.length;
        this.draft = "";
    }

    /** Return the previous (-1) or next (1) entry; null at an end. `current`: the text in the prompt. */
    step(by: -1 | 1, current: string): string | null {
        const index = this.index + by;
        if (index < 0 || index > this.earlier.length) return null;
        if (this.index === this.earlier.length) this.draft = current;
        this.index = index;
        return index === this.earlier.length ? this.draft : (this.earlier[index] ?? "");
    }
}
