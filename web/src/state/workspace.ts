/**
 * A workspace in view: its state, kept up to date by one stream.
 *
 * Events are applied as they arrive. What components read changes at most once per animation frame: then `version`
 * increases, and the listeners of `subscribe` receive all changes since the last frame.
 */

import { batch, signal } from "@preact/signals";
import { call } from "../api/call";
import { EventStream, type StreamEvent } from "../api/events";
import { clientId } from "../api/client";
import { RequestError, openWorkspace, send } from "../api/http";
import type { MessageBody, WorkspaceBody } from "../api/types";
import { ViewChanges } from "../view/conversation";
import { WorkspaceView } from "../view/workspace_view";
import { FrameTask } from "./frames";
import { retryWhileAway } from "./retry";

/** Messages that one request reads: a few screens. Items. */
const PAGE_MESSAGES = 100;
/** Messages that are read to find one that a link names. Items. */
const FIND_MESSAGES_MAX = 20_000;
/** Pages while a message is searched: fewer requests. Items. */
const FIND_PAGE_MESSAGES = 1_000;

/** How much of a session is loaded. */
export interface SessionLoad {
    state: "loading" | "loaded" | "failed";
    /** Messages before the first loaded one exist at the server. */
    hasEarlier: boolean;
    isLoadingEarlier: boolean;
    /** One line: why the session cannot be shown. */
    error: string;
    isDeleted: boolean;
    /** The server has no session with this id. */
    isMissing: boolean;
}

export class Workspace {
    readonly view = new WorkspaceView();
    readonly version = signal(0);
    /** Increases with `version`, but not if only the content of messages has changed. */
    readonly outline = signal(0);
    /** False: the stream is being resumed. Nothing is lost meanwhile. */
    readonly connected = signal(true);
    /** Increases when the stream is connected: components load again what depends on the state of the server. */
    readonly connects = signal(0);
    /** Why the workspace cannot be shown, in one line; empty: it is shown. */
    readonly failure = signal("");
    /** Increased by an act after which the transcript shows its end: the user has sent a prompt. */
    readonly jumps = signal(0);
    path = "";
    body: WorkspaceBody | null = null;
    /** Whether sessions, Runs and Asks are loaded. */
    isLoaded = false;
    private readonly loads = new Map<string, SessionLoad>();
    private readonly listeners = new Set<(changes: ViewChanges) => void>();
    private readonly eventListeners = new Set<(events: StreamEvent[]) => void>();
    private stream: EventStream | null = null;
    private isClosed = false;
    private isReloading = false;
    private pending = new ViewChanges();
    /** Events that arrive while the pending Asks are read; null: none are read. */
    private held: StreamEvent[] | null = null;
    private readonly frame = new FrameTask(() => this.publish());

    constructor(
        readonly id: string,
        /** Set for a browser that reaches one session only. */
        private readonly onlySession = "",
    ) {}

    // --- life -------------------------------------------------------------------------------------------------------

    /** Open the workspace, subscribe to its events and load its state. Failures are in `failure`. */
    async open(): Promise<void> {
        try {
            await this.claim();
            await this.follow();
            await this.load();
        } catch (error) {
            this.fail(error);
        }
    }

    close(): void {
        this.isClosed = true;
        this.stream?.close();
        this.listeners.clear();
        this.eventListeners.clear();
    }

    /** Connect now instead of after the current delay. */
    wake(): void {
        this.stream?.wake();
    }

    /** Call `listener` with all changes of each frame. Returns a function that ends it. */
    subscribe(listener: (changes: ViewChanges) => void): () => void {
        this.listeners.add(listener);
        return () => this.listeners.delete(listener);
    }

    /** Call `listener` with the events as they arrive. Returns a function that ends it. */
    listen(listener: (events: StreamEvent[]) => void): () => void {
        this.eventListeners.add(listener);
        return () => this.eventListeners.delete(listener);
    }

    private async claim(): Promise<void> {
        this.body = await this.retry(() => openWorkspace(this.id));
        this.path = this.body.path;
    }

    /** Begin the stream; return when it is connected, so that nothing that is loaded then can be out of date. */
    private follow(): Promise<void> {
        return new Promise((resolve, reject) => {
            const stream = (this.stream = new EventStream({
                open: (after, signal) =>
                    send("GET", `/workspaces/${encodeURIComponent(this.id)}/events`, {
                        query: { client_id: clientId, deltas: true, after, session_id: this.onlySession || null },
                        signal,
                    }),
                onEvents: (events) => this.apply(events),
                onConnected: (connected) => {
                    this.connected.value = connected;
                    if (!connected) return;
                    this.recover();
                    resolve();
                },
                onEnd: (error) => {
                    this.connected.value = true; // it is not resumed: `failure` says why
                    this.fail(error);
                    reject(error);
                },
            }));
            if (this.isClosed) return;
            stream.run().catch((error: unknown) => {
                this.fail(error);
                reject(error instanceof Error ? error : new Error(String(error)));
            });
        });
    }

    /** The stream is connected: what could not be loaded before is loaded again. */
    private recover(): void {
        this.connects.value++;
        if (this.failure.value) {
            this.failure.value = "";
            void this.reload();
            return;
        }
        for (const [sessionId, load] of this.loads) {
            if (load.state === "failed") void this.loadSession(sessionId);
        }
    }

    private fail(error: unknown): void {
        if (this.isClosed) return;
        if (!(error instanceof RequestError)) this.failure.value = `Unexpected error: ${String(error)}`;
        else if (error.code === "workspace_not_found") this.failure.value = "This workspace does not exist any more.";
        else this.failure.value = error.message;
    }

    // --- events -----------------------------------------------------------------------------------------------------

    private apply(events: StreamEvent[]): void {
        if (this.held) {
            this.held.push(...events);
            return;
        }
        for (const event of events) {
            if (event.type === "rewind") this.checkRewind(event);
            this.pending.add(this.view.apply(event));
        }
        for (const listener of this.eventListeners) listener(events);
        if (this.pending.gap) void this.reload();
        this.frame.request();
    }

    private publish(): void {
        if (this.isReloading) return; // published when it is complete
        const changes = this.pending;
        this.pending = new ViewChanges();
        for (const sessionId of changes.files) {
            if (this.loads.has(sessionId)) void this.loadFiles(sessionId).catch(() => undefined);
        }
        if (changes.moved) {
            for (const sessionId of this.loads.keys()) void this.loadRuns(sessionId).catch(() => undefined);
        }
        this.markDeleted();
        batch(() => {
            this.version.value++;
            if (!isContentOnly(changes)) this.outline.value++;
        });
        for (const listener of this.listeners) listener(changes);
    }

    /** Request a new frame for a change that no event reported. */
    touch(): void {
        this.frame.request();
    }

    /** A rewind to a message before the loaded ones removes all of them: the session is read again. */
    private checkRewind(event: StreamEvent): void {
        const { session_id: sessionId, message_id: messageId } = event.payload as {
            session_id: string;
            message_id: string;
        };
        const load = this.loads.get(sessionId);
        if (!load?.hasEarlier || this.view.conversations.get(sessionId)?.entries.has(messageId)) return;
        this.view.conversations.delete(sessionId);
        void this.loadSession(sessionId);
    }

    private markDeleted(): void {
        if (!this.isLoaded) return;
        for (const [sessionId, load] of this.loads) {
            load.isDeleted = load.state === "loaded" && this.view.session(sessionId) === null;
        }
    }

    /** Events were missed: read everything again. What is on the screen stays until then. */
    private async reload(): Promise<void> {
        if (this.isReloading) return;
        this.isReloading = true;
        this.pending.gap = false;
        this.pending.order = true;
        try {
            this.view.reset();
            await this.load();
            for (const sessionId of [...this.loads.keys()]) await this.loadSession(sessionId);
        } catch (error) {
            this.fail(error);
        }
        this.isReloading = false;
        if (this.pending.gap)
            void this.reload(); // another one meanwhile
        else this.frame.request();
    }

    // --- requests ---------------------------------------------------------------------------------------------------

    /** The Position of the last received event. A response to a later request is at least this new. */
    private get at(): number {
        return this.stream?.position ?? 0;
    }

    private retry<T>(request: () => Promise<T>): Promise<T> {
        return retryWhileAway(request, () => this.isClosed);
    }

    /**
     * Load sessions, live Runs and pending Asks. Asks have no Position: one that arrives after the request, and so is
     * missing in the response, would be taken for closed. So events wait.
     */
    private async load(): Promise<void> {
        const held = (this.held = []);
        try {
            await this.loadAll();
        } finally {
            this.held = null;
            this.apply(held);
        }
    }

    private async loadAll(): Promise<void> {
        const path = { id: this.id };
        const at = this.at;
        const [sessions, runs, approvals, questions] = await Promise.all([
            this.retry(() => this.readSessions()),
            this.onlySession ? [] : this.retry(() => call("get", "/v1/runs", {})),
            this.retry(() => call("get", "/v1/workspaces/{id}/permissions", { path })),
            this.retry(() => call("get", "/v1/workspaces/{id}/questions", { path })),
        ]);
        this.view.loadSessions(sessions, at);
        this.view.loadRuns(
            runs.filter((run) => run.workspace_id === this.id),
            at,
        );
        this.view.loadAsks([...approvals, ...questions]);
        this.isLoaded = true;
        this.pending.sessions = this.pending.runs = this.pending.asks = true;
        this.frame.request();
    }

    private async readSessions() {
        const path = { id: this.id };
        if (!this.onlySession) return call("get", "/v1/workspaces/{id}/sessions", { path });
        return [
            await call("get", "/v1/workspaces/{id}/sessions/{sid}", { path: { id: this.id, sid: this.onlySession } }),
        ];
    }

    sessionLoad(sessionId: string): SessionLoad | undefined {
        return this.loads.get(sessionId);
    }

    /** Load the Runs, the changed files and the last messages of a session. */
    async loadSession(sessionId: string): Promise<void> {
        const load: SessionLoad = {
            state: "loading",
            hasEarlier: false,
            isLoadingEarlier: false,
            error: "",
            isDeleted: false,
            isMissing: false,
        };
        this.loads.set(sessionId, load);
        const at = this.at;
        // The conversation exists before the requests: events that arrive meanwhile are applied to it.
        this.view.loadConversation(sessionId, [], at);
        this.touch();
        try {
            const [messages] = await Promise.all([
                this.readMessages(sessionId, "", PAGE_MESSAGES),
                this.loadRuns(sessionId),
                this.loadFiles(sessionId),
                this.loadBody(sessionId),
            ]);
            const conversation = this.view.loadConversation(sessionId, messages, at);
            // A page may end early, at its limit of bytes.
            const count = this.view.session(sessionId)?.message_count ?? 0;
            load.hasEarlier = messages.length >= PAGE_MESSAGES || (messages.length > 0 && messages.length < count);
            load.state = "loaded";
            // The server then sends each streaming message in full, so that Deltas can be appended to it.
            const isBehind = conversation
                .ordered()
                .some((entry) => entry.body.role === "assistant" && !entry.isFinished && !entry.follows);
            if (isBehind) this.stream?.reconnect();
        } catch (error) {
            load.state = "failed";
            load.error = error instanceof RequestError ? error.message : String(error);
            load.isMissing = error instanceof RequestError && error.code === "session_not_found";
        }
        this.pending.order = true;
        this.touch();
    }

    /** Load the session's own record: the list may not reach back to it, and a child's is not in it. */
    private async loadBody(sessionId: string): Promise<void> {
        const at = this.at;
        const path = { id: this.id, sid: sessionId };
        const body = await this.retry(() => call("get", "/v1/workspaces/{id}/sessions/{sid}", { path }));
        this.view.loadSessions([body], at);
    }

    async loadRuns(sessionId: string): Promise<void> {
        const at = this.at;
        const path = { id: this.id, sid: sessionId };
        const runs = await this.retry(() => call("get", "/v1/workspaces/{id}/agent/sessions/{sid}/runs", { path }));
        this.view.loadRuns(runs, at);
        this.pending.runs = true;
        this.touch();
    }

    async loadFiles(sessionId: string): Promise<void> {
        const at = this.at;
        const path = { id: this.id, sid: sessionId };
        const files = await this.retry(() => call("get", "/v1/workspaces/{id}/sessions/{sid}/files", { path }));
        this.view.loadFiles(sessionId, files, at);
        this.touch();
    }

    /** Load the messages before the first loaded one. */
    async loadEarlier(sessionId: string, count = PAGE_MESSAGES): Promise<void> {
        const load = this.loads.get(sessionId);
        const conversation = this.view.conversations.get(sessionId);
        const first = conversation?.ordered()[0];
        if (!load || load.isLoadingEarlier || !load.hasEarlier || !first) return;
        load.isLoadingEarlier = true;
        try {
            const at = this.at;
            const messages = await this.readMessages(sessionId, first.body.id, count);
            if (this.loads.get(sessionId) !== load) return; // loaded again meanwhile
            conversation.loadEarlier(messages, at);
            load.hasEarlier = messages.length > 0;
        } catch (error) {
            // After a rewind the first message does not exist any more: the session is loaded again by its event.
            if (!(error instanceof RequestError)) throw error;
        } finally {
            load.isLoadingEarlier = false;
        }
        this.pending.order = true;
        this.touch();
    }

    /** Load earlier messages until this one is there. Returns whether it is. */
    async findMessage(sessionId: string, messageId: string): Promise<boolean> {
        for (let read = 0; read < FIND_MESSAGES_MAX; read += FIND_PAGE_MESSAGES) {
            if (this.view.conversations.get(sessionId)?.entries.has(messageId)) return true;
            if (!this.loads.get(sessionId)?.hasEarlier) return false;
            await this.loadEarlier(sessionId, FIND_PAGE_MESSAGES);
        }
        return false;
    }

    /** Return the messages before this one; before the end of the session if it is empty. */
    private readMessages(sessionId: string, before: string, limit: number): Promise<MessageBody[]> {
        const path = { id: this.id, sid: sessionId };
        const query = { before, limit };
        return this.retry(() => call("get", "/v1/workspaces/{id}/sessions/{sid}/messages", { path, query }));
    }
}

function isContentOnly(changes: ViewChanges): boolean {
    const { order, runs, sessions, asks, moved, ended, asked, files, messages } = changes;
    const isOther = order || runs || sessions || asks || moved || ended.length + asked.length + files.size > 0;
    return messages.size > 0 && !isOther;
}
