/** The messages of an open session with the results of their tool calls. A port of `client/view/conversation.py`. */

import type {
    AgentEvent,
    DeltaBody,
    MessageBody,
    PartBody,
    PermissionRequest,
    ProgressBody,
    QuestionBatch,
    RunComplete,
} from "../api/types";

export type Ask = PermissionRequest | QuestionBatch;

/** The parts of the view that changed and have to be drawn again. */
export class ViewChanges {
    messages = new Set<string>();
    /** Messages were added, removed or reordered. */
    order = false;
    runs = false;
    sessions = false;
    asks = false;
    /** Events were missed: all state has to be reloaded. */
    gap = false;
    ended: RunComplete[] = [];
    asked: Ask[] = [];
    /** The order of the queue has to be reloaded. */
    moved = false;
    /** Sessions whose changed files have to be reloaded. */
    files = new Set<string>();

    add(other: ViewChanges): void {
        for (const id of other.messages) this.messages.add(id);
        for (const id of other.files) this.files.add(id);
        this.ended.push(...other.ended);
        this.asked.push(...other.asked);
        for (const flag of ["order", "runs", "sessions", "asks", "gap", "moved"] as const) this[flag] ||= other[flag];
    }
}

/** Sort key: loaded messages first, in their order; then the others by the Position of their first event. */
export type Order = readonly [group: 0 | 1, number: number];

function compare(a: Order, b: Order): number {
    return a[0] - b[0] || a[1] - b[1];
}

/** A message of an open conversation. */
export class ConversationEntry {
    /** Increases with each change: what was drawn from an older version is stale. */
    version = 0;

    constructor(
        public body: MessageBody,
        public order: Order,
        /** The Position of `body`. */
        public at: number,
        /** Whether the text is complete up to the current Delta, so that Deltas can be appended. */
        public follows: boolean,
    ) {}

    get isFinished(): boolean {
        return this.body.parts.some((part) => part.type === "finish");
    }
}

function callId(part: PartBody): string {
    return String(part.data["id"]);
}

function answeredCall(part: PartBody): string {
    return String(part.data["tool_call_id"]);
}

/** Return the value of a key, which is created if it is missing. */
export function obtain<K, V>(map: Map<K, V>, key: K, create: () => V): V {
    let value = map.get(key);
    if (value === undefined) map.set(key, (value = create()));
    return value;
}

export class Conversation {
    readonly entries = new Map<string, ConversationEntry>();
    /** By Run: the retry of a failed model request. */
    readonly retries = new Map<string, AgentEvent>();
    /**
     * By call id: the messages that contain the call, and its results by the message that contains them. Some
     * providers reuse call ids in each Step, so there may be several.
     */
    private readonly callers = new Map<string, Set<string>>();
    private readonly results = new Map<string, Map<string, PartBody>>();
    /** By Run: its messages with calls. */
    private readonly messagesWithCalls = new Map<string, Set<string>>();
    /** By message, then by call without a result: the progress of the call. */
    private readonly progress = new Map<string, Map<string, string>>();
    /** By Run: the highest Position of an event of the Run or of its messages. */
    private readonly runPositions = new Map<string, number>();
    /** By removed message: the Position of its removal. */
    private readonly removed = new Map<string, number>();
    /** By the first message that a rewind removed: the Position of the rewind. */
    private readonly cuts = new Map<string, number>();
    private sorted: ConversationEntry[] | null = null;

    ordered(): ConversationEntry[] {
        this.sorted ??= [...this.entries.values()].sort((a, b) => compare(a.order, b.order));
        return this.sorted;
    }

    /** Return the result of a call of this message: the next one after it, unless a later message repeats the id. */
    resultOf(entry: ConversationEntry, call: string): PartBody | null {
        let order: Order | null = null;
        let result: PartBody | null = null;
        for (const [messageId, part] of this.results.get(call) ?? []) {
            const other = this.following(messageId, entry);
            if (other && (order === null || compare(other.order, order) < 0)) [order, result] = [other.order, part];
        }
        if (order === null) return null;
        for (const caller of this.callers.get(call) ?? []) {
            const other = this.following(caller, entry);
            if (other && compare(other.order, order) < 0) return null;
        }
        return result;
    }

    /** Return the entry of a message if it comes after this one in the same Run. */
    private following(messageId: string, entry: ConversationEntry): ConversationEntry | null {
        const other = this.entry(messageId);
        return compare(other.order, entry.order) > 0 && other.body.run_id === entry.body.run_id ? other : null;
    }

    private entry(messageId: string): ConversationEntry {
        const entry = this.entries.get(messageId);
        if (!entry) throw new Error(`message ${messageId} is not in the conversation`);
        return entry;
    }

    progressOf(entry: ConversationEntry, call: string): string {
        return this.progress.get(entry.body.id)?.get(call) ?? "";
    }

    // --- messages ---------------------------------------------------------------------------------------------------

    /** Replace all messages with those of a response to a request made at Position `at`. */
    load(bodies: Iterable<MessageBody>, at: number): void {
        let number = -1;
        for (const body of bodies) {
            number++;
            if ((this.cuts.get(body.id) ?? -1) > at) break; // removed since the request, with all messages after it
            const entry = this.entries.get(body.id);
            if (entry && entry.at > at) {
                entry.order = [0, number];
            } else if ((this.removed.get(body.id) ?? -1) <= at) {
                this.delete(body.id);
                const loaded = new ConversationEntry(body, [0, number], at, false);
                loaded.version = entry ? entry.version + 1 : 0;
                this.insert(loaded);
            }
        }
        this.sorted = null;
    }

    /** Add the messages before the first loaded one, from a response to a request made at Position `at`. */
    loadEarlier(bodies: MessageBody[], at: number): void {
        let first = 0;
        for (const { order } of this.entries.values()) if (order[0] === 0) first = Math.min(first, order[1]);
        bodies.forEach((body, index) => {
            if (this.entries.has(body.id) || (this.removed.get(body.id) ?? -1) > at) return;
            this.insert(new ConversationEntry(body, [0, first - bodies.length + index], at, false));
        });
        this.sorted = null;
    }

    put(body: MessageBody, position: number | null, changes: ViewChanges): void {
        const entry = this.entries.get(body.id);
        if (position === null) {
            // The current state of a streaming message: Deltas can be appended from here.
            if (entry && !entry.isFinished) this.replace(entry, body, changes);
            return;
        }
        this.advanceRun(body.run_id, position, changes);
        if (position <= (this.removed.get(body.id) ?? -1)) return;
        if (!entry) {
            const created = new ConversationEntry(body, [1, position], position, true);
            this.insert(created);
            this.reorder(changes);
            this.touch(created, changes);
            return;
        }
        if (compare(entry.order, [1, position]) > 0) {
            entry.order = [1, position];
            this.reorder(changes);
            this.touch(entry, changes);
        }
        if (position > entry.at) {
            entry.at = position;
            this.replace(entry, body, changes);
        }
    }

    private reorder(changes: ViewChanges): void {
        this.sorted = null;
        changes.order = true;
    }

    private replace(entry: ConversationEntry, body: MessageBody, changes: ViewChanges): void {
        this.touch(entry, changes); // before the replacement: also the calls whose results the old body contains
        this.delete(body.id);
        entry.body = body;
        entry.follows = true;
        this.insert(entry);
        this.touch(entry, changes);
    }

    remove(messageId: string, position: number, changes: ViewChanges): void {
        this.removed.set(messageId, Math.max(position, this.removed.get(messageId) ?? -1));
        const entry = this.entries.get(messageId);
        if (entry && entry.at < position) {
            this.touch(entry, changes);
            this.delete(messageId);
            this.reorder(changes);
        }
    }

    /** Remove this message and those after it: a rewind at this Position has removed them. */
    cut(messageId: string, position: number, changes: ViewChanges): void {
        this.cuts.set(messageId, position);
        const first = this.entries.get(messageId);
        if (!first || first.at >= position) return;
        for (const entry of [...this.entries.values()]) {
            if (compare(entry.order, first.order) >= 0) this.remove(entry.body.id, position, changes);
        }
    }

    private insert(entry: ConversationEntry): void {
        const { id, run_id, parts } = entry.body;
        this.entries.set(id, entry);
        for (const part of parts) {
            if (part.type === "tool_call") {
                obtain(this.callers, callId(part), () => new Set()).add(id);
                obtain(this.messagesWithCalls, run_id, () => new Set()).add(id);
            } else if (part.type === "tool_result") {
                const call = answeredCall(part);
                obtain(this.results, call, () => new Map()).set(id, part);
                for (const caller of this.callers.get(call) ?? []) this.progress.get(caller)?.delete(call);
            }
        }
    }

    private delete(messageId: string): void {
        const entry = this.entries.get(messageId);
        if (!entry) return;
        this.entries.delete(messageId);
        for (const part of entry.body.parts) {
            if (part.type === "tool_call") this.callers.get(callId(part))?.delete(messageId);
            else if (part.type === "tool_result") this.results.get(answeredCall(part))?.delete(messageId);
        }
        this.messagesWithCalls.get(entry.body.run_id)?.delete(messageId);
    }

    addDelta(delta: DeltaBody, changes: ViewChanges): void {
        const entry = this.entries.get(delta.message_id);
        if (!entry || !entry.follows || entry.isFinished) return;
        const parts = entry.body.parts;
        while (parts.length <= delta.part) {
            const isText = (delta.kind ?? "text") === "text";
            parts.push(isText ? { type: "text", data: { text: "" } } : { type: "reasoning", data: { thinking: "" } });
        }
        const part = parts[delta.part];
        if (!part) return;
        const key = part.type === "text" ? "text" : "thinking";
        part.data[key] = String(part.data[key] ?? "") + delta.text;
        this.endRetry(entry.body.run_id, changes);
        entry.version++;
        changes.messages.add(delta.message_id);
    }

    // --- messages that have to be drawn again -----------------------------------------------------------------------

    private touch(entry: ConversationEntry, changes: ViewChanges): void {
        entry.version++;
        changes.messages.add(entry.body.id);
        for (const part of entry.body.parts) {
            // A result is drawn with its call.
            if (part.type === "tool_result") this.touchCall(answeredCall(part), entry.body.run_id, changes);
        }
    }

    touchCall(call: string, runId: string, changes: ViewChanges): void {
        for (const caller of this.callers.get(call) ?? []) {
            const entry = this.entry(caller);
            if (entry.body.run_id !== runId) continue;
            entry.version++;
            changes.messages.add(caller);
        }
    }

    /** Touch the messages of the Run that contain calls without a result. */
    touchOpenCalls(runId: string, changes: ViewChanges): void {
        for (const messageId of this.messagesWithCalls.get(runId) ?? []) {
            const entry = this.entry(messageId);
            if (!this.hasOpenCalls(entry)) continue;
            entry.version++;
            changes.messages.add(messageId);
        }
    }

    touchRun(runId: string, changes: ViewChanges): void {
        for (const entry of this.entries.values()) {
            if (entry.body.run_id !== runId) continue;
            entry.version++;
            changes.messages.add(entry.body.id);
        }
    }

    private hasOpenCalls(entry: ConversationEntry): boolean {
        return entry.body.parts.some((part) => part.type === "tool_call" && !this.resultOf(entry, callId(part)));
    }

    setProgress(progress: ProgressBody, changes: ViewChanges): void {
        const call = progress.tool_call_id;
        let last: ConversationEntry | null = null;
        for (const caller of this.callers.get(call) ?? []) {
            const entry = this.entry(caller);
            if (entry.body.run_id !== progress.run_id) continue;
            if (!last || compare(entry.order, last.order) > 0) last = entry;
        }
        if (!last || this.resultOf(last, call)) return;
        obtain(this.progress, last.body.id, () => new Map()).set(call, progress.text);
        last.version++;
        changes.messages.add(last.body.id);
    }

    /** Record an event of the Run. Returns whether it is the newest; a newer event ends the Run's retry. */
    advanceRun(runId: string, position: number, changes: ViewChanges): boolean {
        if (position <= (this.runPositions.get(runId) ?? -1)) return false;
        this.runPositions.set(runId, position);
        this.endRetry(runId, changes);
        return true;
    }

    /** Show a retry until the next event of the Run. Without a Position: a write to the store is retried. */
    setRetry(retry: AgentEvent, position: number | null, changes: ViewChanges): void {
        if (position !== null && !this.advanceRun(retry.run_id, position, changes)) return;
        this.retries.set(retry.run_id, retry);
        this.touchLast(retry.run_id, changes);
    }

    private endRetry(runId: string, changes: ViewChanges): void {
        if (this.retries.delete(runId)) this.touchLast(runId, changes);
    }

    /** Touch the last message of the Run: its retry is drawn there. */
    private touchLast(runId: string, changes: ViewChanges): void {
        changes.runs = true;
        const last = this.ordered().findLast((entry) => entry.body.run_id === runId);
        if (!last) return;
        last.version++;
        changes.messages.add(last.body.id);
    }
}
