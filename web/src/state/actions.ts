/**
 * Every act of the user as a function. Errors are shown as notices, and text that did not reach the server returns to
 * the prompt of its session. A port of `tui/state/session_actions.py`.
 */

import { call } from "../api/call";
import { clientId, newId } from "../api/client";
import { RequestError, errorOf, openWorkspace, send } from "../api/http";
import type {
    AttachmentBody,
    CancelReply,
    PermissionRequest,
    QuestionResponse,
    RewindReply,
    RunBody,
    SessionBody,
} from "../api/types";
import { prompts } from "../view/prompts";
import { jobsRemain, type Effort, type Mode } from "../view/status_text";
import type { WorkspaceView } from "../view/workspace_view";
import { attachmentBody, type Attachment } from "./attachments";
import { draftOf } from "./drafts";
import { inOrder, isAway, retry } from "./in_order";
import { notify, reported } from "./notices";
import { addOutgoing, removeOutgoing, sendingIn, takeInterrupted } from "./outbox";

/** The workspace in which the user acts. */
export interface Target {
    readonly id: string;
    readonly view: WorkspaceView;
}

/** A prompt with its files: a phone may need minutes to send 14 MiB. Milliseconds. */
const SUBMIT_MS_MAX = 300_000;
const NOT_RECORDED = "Being stopped; the cancel is not recorded yet, since the server's store does not answer";

// --- prompts ---------------------------------------------------------------------------------------------------------

export interface Prompt {
    text: string;
    attachments: readonly Attachment[];
    /** Paths of files that the server reads. */
    files: readonly string[];
    /** Fold it into the active Run instead of queueing it. */
    folds: boolean;
}

/** Send a prompt. If it is not accepted, it returns to the prompt of the session. */
export async function submit(target: Target, sessionId: string, prompt: Prompt): Promise<void> {
    const runId = newId();
    addOutgoing({ runId, workspaceId: target.id, sessionId, text: prompt.text });
    const body = {
        session_id: sessionId,
        prompt: prompt.text,
        run_id: runId,
        attachments: bodies(prompt.attachments, prompt.files),
        when_busy: prompt.folds ? ("fold" as const) : ("queue" as const),
        expand: true,
    };
    const post = () =>
        call("post", "/v1/workspaces/{id}/agent", { path: { id: target.id }, body, limitMs: SUBMIT_MS_MAX });
    try {
        await inOrder(sessionId, () => retry(post));
    } catch (error) {
        draftOf(sessionId).putBack([prompt.text], prompt.attachments);
        if (!(error instanceof RequestError)) throw error;
        notify(error.message, "error");
    } finally {
        removeOutgoing(runId);
    }
}

function bodies(attachments: readonly Attachment[], files: readonly string[]): AttachmentBody[] | null {
    const all = [...attachments.map(attachmentBody), ...files.map((path) => ({ file_path: path }))];
    return all.length > 0 ? all : null;
}

/** Return prompts to their sessions that a reload of the page interrupted, unless the server has accepted them. */
export async function recoverInterrupted(): Promise<void> {
    for (const { runId, workspaceId, sessionId, text } of takeInterrupted()) {
        const path = { id: workspaceId, run_id: runId };
        try {
            await retry(() => openWorkspace(workspaceId));
            await retry(() => call("get", "/v1/workspaces/{id}/agent/runs/{run_id}", { path }));
        } catch {
            draftOf(sessionId).putBack([text]);
        }
    }
}

/** Run a shell command of the user. Not retried: it may have run. The command returns to the prompt on an error. */
export async function shell(target: Target, sessionId: string, command: string, signal: AbortSignal): Promise<void> {
    const path = { id: target.id, sid: sessionId };
    const post = () =>
        call("post", "/v1/workspaces/{id}/agent/sessions/{sid}/shell", {
            path,
            body: { command },
            signal,
            limitMs: null,
        });
    try {
        await inOrder(sessionId, post);
    } catch (error) {
        if (signal.aborted) return;
        draftOf(sessionId).putBack([`!${command}`]);
        if (!(error instanceof RequestError)) throw error;
        notify(error.message, "error");
    }
}

// --- stopping --------------------------------------------------------------------------------------------------------

/** Return the Run that "Stop this run" stops: the active one, else the prompt being sent. Empty: none. */
export function runToStop(target: Target, sessionId: string): string {
    return target.view.active(sessionId)?.run_id ?? sendingIn(sessionId)[0]?.runId ?? "";
}

/** Cancel one Run. */
export async function stopRun(target: Target, sessionId: string, runId: string): Promise<void> {
    try {
        noteCancel(await inOrder(sessionId, () => retry(() => cancelRun(target, runId))));
    } catch (error) {
        // It was refused, or its session is deleted: there is nothing to stop.
        if (!isMissing(error)) await reported(Promise.reject(error));
    }
}

/** Cancel all Runs of the session accepted until now. The prompts of those that never started return to the prompt. */
export async function stopAll(target: Target, sessionId: string): Promise<void> {
    await reported(inOrder(sessionId, () => cancelAll(target, sessionId)));
}

async function cancelAll(target: Target, sessionId: string): Promise<void> {
    const active = target.view.active(sessionId);
    const known = [...target.view.queue(sessionId), ...(active ? [active] : [])];
    const path = { id: target.id, sid: sessionId };
    try {
        const reply = await call("post", "/v1/workspaces/{id}/agent/sessions/{sid}/cancel", { path });
        const queued = reply.covered.filter(({ was }) => was === "queued");
        draftOf(sessionId).putBack(queued.map(({ run_id }) => target.view.run(run_id)?.prompt ?? ""));
        noteCancel(reply);
    } catch (error) {
        if (!isAway(error)) throw error;
        // The request may have been received. Repeated, it would also cover Runs accepted since: cancel one by one.
        for (const run of known) {
            if (await cancelQueued(target, run)) draftOf(sessionId).putBack([run.prompt]);
        }
    }
}

function cancelRun(target: Target, runId: string): Promise<CancelReply> {
    return call("post", "/v1/workspaces/{id}/agent/runs/{run_id}/cancel", { path: { id: target.id, run_id: runId } });
}

function noteCancel(reply: CancelReply): void {
    if (!reply.recorded) notify(NOT_RECORDED, "warning");
    if (reply.jobs.length > 0) notify(jobsRemain(reply.jobs));
}

// --- the queue -------------------------------------------------------------------------------------------------------

/** Cancel a queued Run; its text returns to the prompt. */
export async function remove(target: Target, run: RunBody): Promise<void> {
    const isRemoved = await reported(inOrder(run.session_id, () => cancelQueued(target, run)));
    if (isRemoved) draftOf(run.session_id).putBack([run.prompt]);
    else if (isRemoved === false) notify("This prompt is already running; stop it with “Stop this run”", "warning");
}

/** Cancel a Run; return whether it was still queued. */
async function cancelQueued(target: Target, run: RunBody): Promise<boolean> {
    const reply = await retry(() => cancelRun(target, run.run_id));
    const covered = reply.covered.find(({ run_id }) => run_id === run.run_id);
    if (covered) return covered.was === "queued";
    // The response to an earlier attempt may have been lost, or another client cancelled the Run.
    const path = { id: target.id, run_id: run.run_id };
    const now = await retry(() => call("get", "/v1/workspaces/{id}/agent/runs/{run_id}", { path }));
    return now.outcome === "cancelled" && !now.started_at;
}

/** Replace the text of a queued Run. On an error the new text returns to the prompt. */
export async function edit(target: Target, run: RunBody, text: string): Promise<void> {
    const path = { id: target.id, run_id: run.run_id };
    const patch = () =>
        call("patch", "/v1/workspaces/{id}/agent/runs/{run_id}", { path, body: { prompt: text, attachments: null } });
    const edited = await reported(inOrder(run.session_id, () => retry(patch)));
    if (!edited) draftOf(run.session_id).putBack([text]);
}

/** Return the Run before which a queued Run is moved: null for the end. Undefined if it is not in the queue. */
export function moveBefore(queue: readonly RunBody[], runId: string, by: number): string | null | undefined {
    const index = queue.findIndex((run) => run.run_id === runId);
    if (index < 0) return undefined;
    const others = queue.filter((run) => run.run_id !== runId);
    return others[Math.max(0, Math.min(others.length, index + by))]?.run_id ?? null;
}

/** Move a queued Run down by this many places, or up if `by` is negative. */
export async function move(target: Target, run: RunBody, by: number): Promise<void> {
    const before = moveBefore(target.view.queue(run.session_id), run.run_id, by);
    if (before === undefined) notify("This prompt is no longer queued", "warning");
    else await moveTo(target, run, before);
}

/** Move a queued Run before another one; null: to the end. */
export async function moveTo(target: Target, run: RunBody, before: string | null): Promise<void> {
    const path = { id: target.id, run_id: run.run_id };
    const post = () => call("post", "/v1/workspaces/{id}/agent/runs/{run_id}/move", { path, body: { before } });
    await reported(inOrder(run.session_id, () => retry(post)));
}

/** Fold a queued Run into the active one, at its next Step. */
export async function foldIn(target: Target, run: RunBody): Promise<void> {
    const path = { id: target.id, run_id: run.run_id };
    const post = () => call("post", "/v1/workspaces/{id}/agent/runs/{run_id}/fold", { path });
    await reported(inOrder(run.session_id, () => retry(post)));
}

// --- approvals and questions -----------------------------------------------------------------------------------------

export type Answer = "allow" | "allow_session" | "allow_always" | "deny";

/** Answer an approval; return whether this answer counts. The events report any other answer. Throws a RequestError. */
export async function answer(
    target: Target,
    ask: PermissionRequest,
    action: Answer,
    message = "",
    rules: string[] = [],
): Promise<boolean> {
    const body = { id: ask.id, action, binding: ask.binding, message, rules };
    const query = { client_id: clientId };
    try {
        const reply = await retry(() =>
            call("post", "/v1/workspaces/{id}/permissions/grant", { path: { id: target.id }, query, body }),
        );
        return reply.resolved;
    } catch (error) {
        if (isMissing(error) || isConflict(error)) return false;
        throw error;
    }
}

/** Answer the questions of a batch. Null: decline to answer. Throws a RequestError. */
export async function answerQuestions(
    target: Target,
    batchId: string,
    responses: QuestionResponse[] | null,
): Promise<void> {
    const path = { id: target.id };
    const query = { client_id: clientId };
    const post = () =>
        responses === null
            ? call("post", "/v1/workspaces/{id}/questions/cancel", { path, query, body: { batch_request_id: batchId } })
            : call("post", "/v1/workspaces/{id}/questions/answer", {
                  path,
                  query,
                  body: { batch_request_id: batchId, responses },
              });
    try {
        await retry(post);
    } catch (error) {
        if (!isMissing(error) && !(error instanceof RequestError && error.code === "ask_withdrawn")) throw error;
    }
}

// --- the session -----------------------------------------------------------------------------------------------------

type Changes = { title?: string; model?: string; effort?: Effort; mode?: Mode };

async function change(target: Target, sessionId: string, changes: Changes): Promise<void> {
    const path = { id: target.id, sid: sessionId };
    const put = () => call("put", "/v1/workspaces/{id}/sessions/{sid}", { path, body: changes });
    await reported(inOrder(sessionId, () => retry(put)));
}

export const rename = (target: Target, sessionId: string, title: string) => change(target, sessionId, { title });
/** An empty name chooses the configured default. */
export const setModel = (target: Target, sessionId: string, model: string) => change(target, sessionId, { model });
export const setEffort = (target: Target, sessionId: string, effort: Effort) => change(target, sessionId, { effort });
export const setMode = (target: Target, sessionId: string, mode: Mode) => change(target, sessionId, { mode });

/** Create a session. Not retried: it would make two. */
export async function createSession(target: Target): Promise<SessionBody | undefined> {
    return reported(call("post", "/v1/workspaces/{id}/sessions", { path: { id: target.id }, body: {} }));
}

/** Sessions that are being deleted at the request of this user. */
export const beingDeleted = new Set<string>();

/** Delete a session. The server first cancels its Runs and waits until they end. Returns whether it is deleted. */
export async function deleteSession(target: Target, sessionId: string): Promise<boolean> {
    const title = target.view.session(sessionId)?.title || sessionId;
    beingDeleted.add(sessionId);
    try {
        const path = { id: target.id, sid: sessionId };
        await retry(() => call("delete", "/v1/workspaces/{id}/sessions/{sid}", { path }));
    } catch (error) {
        if (!isMissing(error)) {
            beingDeleted.delete(sessionId);
            await reported(Promise.reject(error));
            return false;
        }
    }
    notify(`Deleted: ${title}`);
    return true;
}

/** Copy a session up to a message, or all of it. Not retried: it would make two. Returns the id of the copy. */
export async function fork(target: Target, sessionId: string, messageId?: string): Promise<string | undefined> {
    const last = messageId ?? target.view.conversations.get(sessionId)?.ordered().at(-1)?.body.id;
    if (!last) {
        notify("Nothing to fork: the session is empty", "warning");
        return undefined;
    }
    const path = { id: target.id, sid: sessionId };
    const copy = await reported(
        call("post", "/v1/workspaces/{id}/sessions/{sid}/fork", { path, body: { message_id: last } }),
    );
    if (copy) notify("This is a copy; the original session is unchanged");
    return copy?.id;
}

export type RewindScope = "both" | "conversation" | "files";

/** Return to before a prompt, whose text returns to the prompt if it left the conversation. Not retried. */
export async function rewind(target: Target, sessionId: string, messageId: string, scope: RewindScope): Promise<void> {
    const path = { id: target.id, sid: sessionId };
    const body = { message_id: messageId, scope };
    const reply = await reported(
        inOrder(sessionId, () => call("post", "/v1/workspaces/{id}/sessions/{sid}/rewind", { path, body })),
    );
    if (!reply) return;
    notify(rewindText(reply));
    if (reply.fork_session_id) draftOf(sessionId).putBack([reply.prompt]);
}

function rewindText(reply: RewindReply): string {
    const fork = reply.fork_session_id ? "; the conversation as it was is in another session" : "";
    const files = reply.restored.length > 0 ? `; restored: ${reply.restored.join(", ")}` : "";
    const spared = reply.spared.length > 0 ? `; kept, with later changes: ${reply.spared.join(", ")}` : "";
    return `Rewound${fork}${files}${spared}`;
}

/** Return the prompts to which a session can be rewound, the newest first. */
export function rewindPrompts(target: Target, sessionId: string): { messageId: string; text: string }[] {
    return prompts(target.view.conversations.get(sessionId)).reverse();
}

/** Undo the file changes of the last Run. Not retried: it would also undo the Run before it. */
export async function undo(target: Target, sessionId: string): Promise<void> {
    const path = { id: target.id, sid: sessionId };
    const none = "Nothing to undo: no run of this session changed files that can be restored";
    await restore(call("post", "/v1/workspaces/{id}/sessions/{sid}/undo", { path, body: {} }), none);
}

/** Take back the last undo or rewind of files. Not retried: it would also take back the one before it. */
export async function redo(target: Target, sessionId: string): Promise<void> {
    const path = { id: target.id, sid: sessionId };
    const none = "Nothing to redo: there is no undo of this session to take back";
    await restore(call("post", "/v1/workspaces/{id}/sessions/{sid}/redo", { path }), none);
}

async function restore(reverting: Promise<{ files: string[] }>, none: string): Promise<void> {
    try {
        const { files } = await reverting;
        notify(`Restored: ${files.join(", ") || "no file had to be changed"}`);
    } catch (error) {
        if (error instanceof RequestError && error.code === "run_not_found") notify(none, "warning");
        else await reported(Promise.reject(error));
    }
}

export async function summarize(target: Target, sessionId: string): Promise<void> {
    const path = { id: target.id, sid: sessionId };
    await reported(call("post", "/v1/workspaces/{id}/agent/sessions/{sid}/summarize", { path }));
}

export type ExportFormat = "md" | "html" | "json";

/** Export a session as a download. */
export async function exportSession(target: Target, sessionId: string, format: ExportFormat): Promise<void> {
    const path = `/workspaces/${encodeURIComponent(target.id)}/sessions/${encodeURIComponent(sessionId)}/export`;
    const content = await reported(
        retry(async () => {
            const response = await send("GET", path, { query: { format } });
            if (!response.ok) throw errorOf(response.status, await response.text());
            return response.blob();
        }),
    );
    if (!content) return;
    // octet-stream: an exported HTML document must never be shown on the origin of this page.
    const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = `session-${sessionId}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** End a kept command. */
export async function endJob(target: Target, sessionId: string, jobId: string): Promise<void> {
    const path = { id: target.id, sid: sessionId, job_id: jobId };
    await reported(retry(() => call("post", "/v1/workspaces/{id}/sessions/{sid}/jobs/{job_id}/end", { path })));
}

// --- errors ----------------------------------------------------------------------------------------------------------

function isMissing(error: unknown): boolean {
    return error instanceof RequestError && error.status === 404 && error.code !== "workspace_not_found";
}

function isConflict(error: unknown): boolean {
    return error instanceof RequestError && error.status === 409;
}
