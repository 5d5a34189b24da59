/** Unsent prompts by session. Their text is kept in the browser's storage across reloads. */

import { signal, type Signal } from "@preact/signals";
import type { RunBody } from "../api/types";
import { refusal, type Attachment } from "./attachments";
import { DRAFTS, readStored, writeStored } from "./storage";

/** Stored drafts. Items, the oldest are dropped first. */
const DRAFTS_MAX = 50;
/** Longer drafts are kept until the page is closed: all stored ones have to fit into 5 MB. Characters. */
const STORED_DRAFT_CHARS_MAX = 100_000;

interface StoredDraft {
    text: string;
    at: number;
}

/** The prompt of a session: what the user has typed and attached. */
export class Draft {
    readonly text: Signal<string>;
    readonly attachments = signal<Attachment[]>([]);
    /** The queued Run whose text is edited in the prompt, and the text that was in the prompt before. */
    readonly editing = signal<{ run: RunBody; before: string } | null>(null);

    constructor(
        readonly sessionId: string,
        private readonly storage: Storage,
    ) {
        this.text = signal(readStored(storage, DRAFTS + sessionId, isStoredDraft)?.text ?? "");
    }

    set(text: string): void {
        if (text === this.text.value) return;
        this.text.value = text;
        if (!this.editing.value) storeDraft(this.storage, this.sessionId, text);
    }

    /** Insert texts that were not sent before the current text, and attach their files again. */
    putBack(texts: readonly string[], attachments: readonly Attachment[] = []): void {
        const kept = texts.filter((text) => text.trim());
        const editing = this.editing.value;
        if (editing) {
            const before = joined([...kept, editing.before]);
            this.editing.value = { ...editing, before };
            storeDraft(this.storage, this.sessionId, before);
        } else {
            this.set(joined([...kept, this.text.value]));
        }
        for (const attachment of attachments) {
            if (refusal(attachment.name, attachment.bytes.length, this.attachments.value)) continue;
            this.attachments.value = [...this.attachments.value, attachment];
        }
    }

    edit(run: RunBody): void {
        const before = this.editing.value?.before ?? this.text.value;
        this.editing.value = { run, before };
        this.text.value = run.prompt;
    }

    /** End the edit and restore the text before it. Returns the edited Run and its new text. */
    endEdit(): { run: RunBody; text: string } | null {
        const editing = this.editing.value;
        if (!editing) return null;
        const text = this.text.value;
        this.editing.value = null;
        this.set(editing.before);
        return { run: editing.run, text };
    }
}

function joined(texts: string[]): string {
    return texts.filter((text) => text.trim()).join("\n\n");
}

const drafts = new Map<string, Draft>();

export function draftOf(sessionId: string, storage: Storage = localStorage): Draft {
    let draft = drafts.get(sessionId);
    if (!draft) drafts.set(sessionId, (draft = new Draft(sessionId, storage)));
    return draft;
}

function storeDraft(storage: Storage, sessionId: string, text: string): void {
    const isKept = text.trim() !== "" && text.length <= STORED_DRAFT_CHARS_MAX;
    writeStored(storage, DRAFTS + sessionId, isKept ? { text, at: Date.now() } : null);
    if (isKept) dropOldest(storage);
}

function dropOldest(storage: Storage): void {
    const names: string[] = [];
    for (let index = 0; index < storage.length; index++) {
        const name = storage.key(index);
        if (name?.startsWith(DRAFTS)) names.push(name);
    }
    if (names.length <= DRAFTS_MAX) return;
    const age = (name: string) => readStored(storage, name, isStoredDraft)?.at ?? 0;
    for (const name of names.sort((a, b) => age(a) - age(b)).slice(0, -DRAFTS_MAX)) storage.removeItem(name);
}

function isStoredDraft(value: unknown): value is StoredDraft {
    const draft = value as Partial<StoredDraft> | null;
    return typeof draft?.text === "string" && typeof draft.at === "number";
}
