/**
 * The order of requests, and retries.
 *
 * Requests that change the Runs of a session are sent one at a time. A prompt sent after a stop waits until the cancel
 * was answered, so that the cancel cannot cover it. A stop right after a prompt waits until the prompt is accepted, so
 * that there is a Run to cancel.
 */

import { RequestError } from "../api/http";

/** How long a request is retried while the server is away; the user waits for it. Milliseconds. */
const RETRY_MS = 20_000;
/** First and longest delay between two attempts. Milliseconds. */
const DELAY_MS_MIN = 50;
const DELAY_MS_MAX = 2_000;

const tails = new Map<string, Promise<unknown>>();

/** Run `act` when the earlier acts on the session have ended. */
export async function inOrder<T>(sessionId: string, act: () => Promise<T>): Promise<T> {
    const before = tails.get(sessionId) ?? Promise.resolve();
    const result = before.then(act);
    const tail = result.catch(() => {});
    tails.set(sessionId, tail);
    try {
        return await result;
    } finally {
        if (tails.get(sessionId) === tail) tails.delete(sessionId);
    }
}

/** Repeat an idempotent request while the server is away. */
export async function retry<T>(call: () => Promise<T>, limitMs = RETRY_MS): Promise<T> {
    const end = Date.now() + limitMs;
    for (let delay = DELAY_MS_MIN; ; delay = Math.min(2 * delay, DELAY_MS_MAX)) {
        try {
            return await call();
        } catch (error) {
            if (!isAway(error) || Date.now() + delay > end) throw error;
        }
        await new Promise((resolve) => setTimeout(resolve, delay));
    }
}

/** Whether the server is away, or closed the workspace again while it was being opened. */
export function isAway(error: unknown): boolean {
    if (!(error instanceof RequestError)) return false;
    const isOpening = error.code === "workspace_not_found" || error.code === "workspace_closing";
    return isOpening || (error.isTransient && error.status !== 429);
}
