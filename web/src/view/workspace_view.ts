/**
 * The state of a workspace as the page sees it, reduced from events. A port of `client/view/workspace_view.py`, which
 * gives the same result for the same events (`tests/web/test_view_vectors.py`).
 *
 * Every durable event has a Position. For each object the event with the highest Position counts. Events may therefore
 * be repeated, delayed and reordered, as they are after a resume, with the same result. A response counts as of the
 * Position at which its request was made; later changes arrive as events.
 *
 * Deltas have no Position. They are applied only to a message whose text is complete up to them: one that was created
 * on this stream, or that the server has since sent in full.
 */

import type { StreamEvent } from "../api/events";
import type {
    AgentEvent,
    ChangedFiles,
    ExtensionBody,
    JobOutputEvent,
    MessageBody,
    PresenceBody,
    ProgressBody,
    RunBody,
    RunComplete,
    SessionBody,
} from "../api/types";
import { Conversation, ViewChanges, obtain, type Ask } from "./conversation";

/** Closed Asks, kept so that a late request event does not reopen one. Items, the oldest are dropped first. */
const CLOSED_ASKS_MAX = 1_000;
/** Ended Runs, kept for the lines below their answers. Items, the oldest are dropped first. */
const ENDED_RUNS_MAX = 20_000;
/** Jobs whose last lines are kept: those that a server runs at most. Items, the oldest are dropped first. */
const JOB_OUTPUTS_MAX = 64;

/** The newest state of an object and its Position. Null: it was deleted. */
interface Latest<T> {
    body: T | null;
    at: number;
}

/** The answer of an Ask that is no longer pending. */
export interface ClosedAsk {
    /** allow, allow_session, allow_always, deny, answered, cancelled; empty: withdrawn, because its Run stopped. */
    answer: string;
    /** The client that answered. */
    by: string;
    /** The user who answered. Empty: the owner, or no user. */
    author: string;
}

const WITHDRAWN: ClosedAsk = { answer: "", by: "", author: "" };

/** The sessions of a workspace, their Runs, the pending Asks and the open conversations. */
export class WorkspaceView {
    /** Why the configuration files are not in effect; empty: they are. Each new stream sends it again. */
    configProblem = "";
    /** The states of extensions that have changed since the stream began, by kind and name. */
    readonly extensions = new Map<string, ExtensionBody>();
    conversations = new Map<string, Conversation>();
    closedAsks = new Map<string, ClosedAsk>();
    private knownSessions = new Map<string, Latest<SessionBody>>();
    private knownRuns = new Map<string, Latest<RunBody>>();
    /** Runs that have not ended, by session; child Runs by parent Run; sessions of child Runs. */
    private live = new Map<string, Map<string, RunBody>>();
    private childRuns = new Map<string, Set<string>>();
    private childSessions = new Set<string>();
    /** The current progress of active child Runs. */
    private progress = new Map<string, string>();
    /** Runs whose end was reported. */
    private reported = new Set<string>();
    private pendingAsks = new Map<string, Ask>();
    /** By session: the files that its Runs changed. */
    private changedFiles = new Map<string, Latest<ChangedFiles>>();
    /** By id: the end of the output of running jobs. */
    private jobOutputs = new Map<string, string>();

    /** Drop everything, because events were missed: known Positions cannot be compared with new ones. */
    reset(): void {
        this.conversations = new Map();
        this.closedAsks = new Map();
        this.knownSessions = new Map();
        this.knownRuns = new Map();
        this.live = new Map();
        this.childRuns = new Map();
        this.childSessions = new Set();
        this.progress = new Map();
        this.reported = new Set();
        this.pendingAsks = new Map();
        this.changedFiles = new Map();
        this.jobOutputs = new Map();
    }

    // --- responses to requests --------------------------------------------------------------------------------------

    loadSessions(bodies: Iterable<SessionBody>, at: number): void {
        for (const body of bodies) store(this.knownSessions, body.id, body, at, true);
    }

    loadRuns(bodies: Iterable<RunBody>, at: number): void {
        for (const body of bodies) this.storeRun(body.run_id, body, at, true);
    }

    /** Replace the pending Asks. Those that are missing are closed. */
    loadAsks(asks: Iterable<Ask>): void {
        const pending = new Map<string, Ask>();
        for (const ask of asks) if (!this.closedAsks.has(ask.id)) pending.set(ask.id, ask);
        for (const id of [...this.pendingAsks.keys()]) {
            if (!pending.has(id)) this.close(id, WITHDRAWN, new ViewChanges());
        }
        this.pendingAsks = pending;
    }

    loadFiles(sessionId: string, files: ChangedFiles, at: number): void {
        store(this.changedFiles, sessionId, files, at, true);
    }

    loadConversation(sessionId: string, bodies: Iterable<MessageBody>, at: number): Conversation {
        const conversation = obtain(this.conversations, sessionId, () => new Conversation());
        conversation.load(bodies, at);
        return conversation;
    }

    // --- events -----------------------------------------------------------------------------------------------------

    apply(event: StreamEvent): ViewChanges {
        const changes = new ViewChanges();
        const { position, change } = event;
        // The server and its clients have one version of the wire format; the types are checked against it.
        const payload = event.payload as never;
        switch (event.type) {
            case "gap":
                changes.gap = true;
                break;
            case "message":
                this.applyMessage(payload, change, position, changes);
                break;
            case "delta":
                for (const conversation of this.conversations.values()) conversation.addDelta(payload, changes);
                break;
            case "session":
                if (position !== null) this.applySession(payload, change, position, changes);
                break;
            case "rewind":
                if (position !== null) this.applyRewind(payload, position, changes);
                break;
            case "run":
                if (position !== null) this.applyRun(payload, change, position, changes);
                break;
            case "run_complete":
                this.applyEnd(payload, changes);
                break;
            case "agent_event":
                this.applyRetry(payload, position, changes);
                break;
            case "progress":
                this.applyProgress(payload, changes);
                break;
            case "config_problem":
                this.configProblem = (payload as { problem?: string }).problem ?? "";
                changes.sessions = true;
                break;
            case "extension":
                this.applyExtension(payload, changes);
                break;
            case "job_output":
                this.applyJobOutput(payload, changes);
                break;
            case "presence":
                this.applyPresence(payload, changes);
                break;
            case "file":
                changes.files.add((payload as { session_id?: string }).session_id ?? "");
                break;
            case "permission_request":
            case "question_batch_request":
                this.applyAsk(payload, change, changes);
                break;
            case "permission_notification":
            case "question_batch_notification":
                this.close((payload as { id: string }).id, closedAsk(payload), changes);
                break;
        }
        return changes;
    }

    private applyMessage(body: MessageBody, change: string, position: number | null, changes: ViewChanges): void {
        const conversation = this.conversations.get(body.session_id);
        if (!conversation) return;
        if (change !== "deleted") conversation.put(body, position, changes);
        else if (position !== null) conversation.remove(body.id, position, changes);
    }

    private applySession(body: SessionBody, change: string, position: number, changes: ViewChanges): void {
        changes.sessions = store(this.knownSessions, body.id, change === "deleted" ? null : body, position);
    }

    private applyRewind(
        rewind: { session_id: string; message_id: string },
        position: number,
        changes: ViewChanges,
    ): void {
        this.conversations.get(rewind.session_id)?.cut(rewind.message_id, position, changes);
    }

    private applyRun(body: RunBody, change: string, position: number, changes: ViewChanges): void {
        const run = change === "deleted" ? null : body;
        const before = this.run(body.run_id);
        if (!this.storeRun(body.run_id, run, position)) return;
        changes.runs = true;
        if (before && run) {
            const isQueued = before.state === "queued" && run.state === "queued";
            changes.moved = isQueued && before.queue_order !== run.queue_order;
            // Runs that waited to be folded into it now wait to start. No event reports that.
            changes.moved ||= run.state === "ended" && this.queue(run.session_id).some((other) => other.folds);
        } else if (run?.state === "queued") {
            // Queued Runs that it has overtaken now have other numbers. No event reports that, either.
            const others = this.queue(run.session_id).filter((other) => other.run_id !== run.run_id);
            changes.moved = others.some((other) => other.queue_order >= run.queue_order);
        }
        for (const conversation of this.conversations.values()) {
            conversation.advanceRun(body.run_id, position, changes);
            if (!run || run.state === "ended") conversation.touchOpenCalls(body.run_id, changes);
            if (run && !haveSameUsers(run, before)) conversation.touchRun(run.run_id, changes);
            if (run?.parent_run_id) conversation.touchOpenCalls(run.parent_run_id, changes);
        }
    }

    private applyEnd(complete: RunComplete, changes: ViewChanges): void {
        if (this.reported.has(complete.run_id)) return;
        changes.ended.push(complete);
        this.reported.add(complete.run_id);
        keepNewest(this.reported, ENDED_RUNS_MAX);
    }

    private applyRetry(retry: AgentEvent, position: number | null, changes: ViewChanges): void {
        if (retry.type !== "retry" || this.run(retry.run_id)?.state === "ended") return;
        this.conversations.get(retry.session_id)?.setRetry(retry, position, changes);
    }

    private applyProgress(progress: ProgressBody, changes: ViewChanges): void {
        this.conversations.get(progress.session_id)?.setProgress(progress, changes);
        const child = this.live.get(progress.session_id)?.get(progress.run_id);
        if (!child?.parent_run_id) return;
        this.progress.set(progress.run_id, progress.text);
        for (const conversation of this.conversations.values()) {
            conversation.touchOpenCalls(child.parent_run_id, changes);
        }
    }

    private applyExtension(extension: ExtensionBody, changes: ViewChanges): void {
        this.extensions.set(`${extension.kind}\n${extension.name}`, extension);
        changes.sessions = true;
    }

    private applyJobOutput(output: JobOutputEvent, changes: ViewChanges): void {
        this.jobOutputs.delete(output.id);
        this.jobOutputs.set(output.id, output.text);
        keepNewest(this.jobOutputs, JOB_OUTPUTS_MAX);
        changes.sessions = true;
    }

    private applyPresence(presence: PresenceBody, changes: ViewChanges): void {
        const known = this.knownSessions.get(presence.session_id);
        if (!known?.body) return;
        known.body = { ...known.body, attached_clients: presence.attached_clients };
        changes.sessions = true;
    }

    private applyAsk(ask: Ask, change: string, changes: ViewChanges): void {
        if (change === "deleted") {
            this.close(ask.id, WITHDRAWN, changes);
        } else if (!this.closedAsks.has(ask.id) && !this.pendingAsks.has(ask.id)) {
            this.pendingAsks.set(ask.id, ask);
            this.touchAsk(ask, changes);
            changes.asked.push(ask);
        }
    }

    private close(id: string, closed: ClosedAsk, changes: ViewChanges): void {
        const before = this.closedAsks.get(id);
        // An answer is kept when a withdrawal follows.
        if (!before?.answer) {
            this.closedAsks.set(id, closed);
            keepNewest(this.closedAsks, CLOSED_ASKS_MAX);
        }
        changes.asks ||= before === undefined;
        const ask = this.pendingAsks.get(id);
        if (!ask) return;
        this.pendingAsks.delete(id);
        this.touchAsk(ask, changes);
    }

    private touchAsk(ask: Ask, changes: ViewChanges): void {
        changes.asks = true;
        this.conversations.get(ask.session_id)?.touchCall(ask.tool_call_id, ask.run_id, changes);
    }

    private storeRun(runId: string, run: RunBody | null, at: number, same = false): boolean {
        const before = this.run(runId);
        if (!store(this.knownRuns, runId, run, at, same)) return false;
        if (before) this.live.get(before.session_id)?.delete(runId);
        if (run && run.state !== "ended") {
            obtain(this.live, run.session_id, () => new Map<string, RunBody>()).set(runId, run);
        } else {
            this.progress.delete(runId);
            this.forgetOldRuns();
        }
        if (run?.parent_run_id) {
            this.childSessions.add(run.session_id);
            obtain(this.childRuns, run.parent_run_id, () => new Set<string>()).add(runId);
        }
        return true;
    }

    private forgetOldRuns(): void {
        if (this.knownRuns.size <= 2 * ENDED_RUNS_MAX) return;
        const ended: string[] = [];
        for (const [id, known] of this.knownRuns) if (!known.body || known.body.state === "ended") ended.push(id);
        for (const id of ended.slice(0, -ENDED_RUNS_MAX)) {
            this.knownRuns.delete(id);
            this.childRuns.delete(id);
        }
    }

    // --- queries ----------------------------------------------------------------------------------------------------

    session(sessionId: string): SessionBody | null {
        return this.knownSessions.get(sessionId)?.body ?? null;
    }

    /** Return the sessions of the user, the newest first, without sessions of child Runs. */
    sessions(): SessionBody[] {
        const own: SessionBody[] = [];
        for (const { body } of this.knownSessions.values()) if (body && !this.isChild(body.id)) own.push(body);
        return own.sort((a, b) => b.updated_at - a.updated_at || compareText(b.id, a.id));
    }

    isChild(sessionId: string): boolean {
        return Boolean(this.session(sessionId)?.parent_run_id) || this.childSessions.has(sessionId);
    }

    run(runId: string): RunBody | null {
        return this.knownRuns.get(runId)?.body ?? null;
    }

    /** Return the active Run. Of two, the later one: the end of the first has not been received yet. */
    active(sessionId: string): RunBody | null {
        let latest: RunBody | null = null;
        for (const run of this.live.get(sessionId)?.values() ?? []) {
            if (run.state === "active" && !run.folded_into && (!latest || run.seq > latest.seq)) latest = run;
        }
        return latest;
    }

    queue(sessionId: string): RunBody[] {
        const queued = [...(this.live.get(sessionId)?.values() ?? [])].filter((run) => run.state === "queued");
        return queued.sort((a, b) => a.queue_order - b.queue_order || a.seq - b.seq);
    }

    /** Return the known child Runs, in the order of acceptance. */
    children(runId: string): RunBody[] {
        const runs: RunBody[] = [];
        for (const child of this.childRuns.get(runId) ?? []) {
            const run = this.run(child);
            if (run) runs.push(run);
        }
        return runs.sort((a, b) => a.accepted_at - b.accepted_at || compareText(a.run_id, b.run_id));
    }

    /** Return the current progress of a child Run; empty if unknown. */
    progressOf(runId: string): string {
        return this.progress.get(runId) ?? "";
    }

    /** Return the files that the Runs of a session changed. */
    files(sessionId: string): ChangedFiles {
        return this.changedFiles.get(sessionId)?.body ?? { count: 0, files: [] };
    }

    /** Return the end of the output of a job, as it arrived on the stream; empty: none did. */
    jobOutput(jobId: string): string {
        return this.jobOutputs.get(jobId) ?? "";
    }

    /** Return the pending Asks of this workspace, the oldest first. */
    asks(): Ask[] {
        return [...this.pendingAsks.values()].sort((a, b) => a.asked_at - b.asked_at || compareText(a.id, b.id));
    }

    /** Return whether this call has a pending Ask. */
    isWaiting(runId: string, callId: string): boolean {
        for (const ask of this.pendingAsks.values()) {
            if (ask.run_id === runId && ask.tool_call_id === callId) return true;
        }
        return false;
    }
}

/** Store a newer state; return whether it is newer. `same`: accept the same Position. */
function store<T>(known: Map<string, Latest<T>>, key: string, body: T | null, at: number, same = false): boolean {
    const before = known.get(key);
    if (before && (before.at > at || (before.at === at && !same))) return false;
    known.set(key, { body, at });
    return true;
}

/** Whether two states of a Run name the same users, who are shown with its messages. */
function haveSameUsers(run: RunBody, before: RunBody | null): boolean {
    return run.author === before?.author && run.cancelled_by === before?.cancelled_by;
}

function keepNewest(known: Map<string, unknown> | Set<string>, itemsMax: number): void {
    for (const key of known.keys()) {
        if (known.size <= itemsMax) return;
        known.delete(key);
    }
}

function compareText(a: string, b: string): number {
    return a < b ? -1 : a > b ? 1 : 0;
}

function closedAsk(payload: {
    withdrawn?: boolean;
    answer?: string;
    answered?: boolean;
    answered_by?: string;
    author?: string;
}): ClosedAsk {
    if (payload.withdrawn) return WITHDRAWN;
    const answer = payload.answer || (payload.answered ? "answered" : "cancelled");
    return { answer, by: payload.answered_by ?? "", author: payload.author ?? "" };
}
