/** Requests to the server of this page: the key of the browser, JSON, closed workspaces, and errors in one line. */

import { clientId } from "./client";
import type { WorkspaceBody } from "./types";

/** The server answers from memory or its store. After this long it is considered hung. Milliseconds. */
const ANSWER_MS_MAX = 30_000;
const STORED_KEY = "kedge.key";

/** A failed request. `message` is one line for the user. `code` is the server's, or empty if no server answered. */
export class RequestError extends Error {
    constructor(
        message: string,
        readonly status: number,
        readonly code: string,
    ) {
        super(message);
    }

    /** Whether a later attempt may succeed: no server answered, or it is starting, stopping or overloaded. */
    get isTransient(): boolean {
        return this.status === 0 || this.status === 429 || (this.status >= 502 && this.status <= 504);
    }
}

/** Called when the server refuses the browser. */
let onRefused: () => void = () => {};

export function whenRefused(action: () => void): void {
    onRefused = action;
}

/** Half of the browser's credential; the cookie, which scripts cannot read, is the other half. */
export const key = {
    get: (): string | null => localStorage.getItem(STORED_KEY),
    set: (value: string): void => localStorage.setItem(STORED_KEY, value),
    forget: (): void => localStorage.removeItem(STORED_KEY),
};

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface Options {
    query?: Query | undefined;
    body?: unknown;
    headers?: Record<string, string>;
    signal?: AbortSignal;
    /** How long the answer may take, if not ANSWER_MS_MAX; null: any time. Milliseconds. */
    limitMs?: number | null;
}

export function address(path: string, query: Query = {}): string {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
        if (value !== undefined && value !== null) params.set(name, String(value));
    }
    const text = params.toString();
    return `/v1${path}${text && "?"}${text}`;
}

/**
 * Send a request and return the response, whatever its status. Throws a RequestError if no server answers.
 *
 * The server may have closed the workspace of the request: it was restarted, or no client held the workspace. It then
 * refused the request before it had an effect. So the workspace is opened, and the request sent again, once.
 */
export async function send(method: string, path: string, options: Options = {}): Promise<Response> {
    const response = await sendOnce(method, path, options);
    const workspaceId = IN_WORKSPACE.exec(path)?.[1];
    if (workspaceId === undefined || !(await isOfClosedWorkspace(response))) return response;
    await openWorkspace(decodeURIComponent(workspaceId));
    return sendOnce(method, path, options);
}

/** A path in a workspace, except for the request that opens it. */
const IN_WORKSPACE = /^\/workspaces\/([^/]+)\/(?!open$)/;

async function isOfClosedWorkspace(response: Response): Promise<boolean> {
    if (response.status !== 404 && response.status !== 409) return false;
    // The caller reads the response, and reports a lost connection.
    const text = await response
        .clone()
        .text()
        .catch(() => "");
    return ["workspace_not_found", "workspace_closing"].includes(errorOf(response.status, text).code);
}

const opening = new Map<string, Promise<WorkspaceBody>>();

/**
 * Open a stored workspace; a claim of this page keeps it open for half a minute. Requests that fail at the same moment
 * share one attempt. Throws a RequestError.
 */
export function openWorkspace(workspaceId: string): Promise<WorkspaceBody> {
    const path = `/workspaces/${encodeURIComponent(workspaceId)}/open`;
    const attempt =
        opening.get(workspaceId) ??
        request<WorkspaceBody>("POST", path, { body: { client_id: clientId } }).finally(() =>
            opening.delete(workspaceId),
        );
    opening.set(workspaceId, attempt);
    return attempt;
}

async function sendOnce(method: string, path: string, options: Options): Promise<Response> {
    const headers = new Headers(options.headers);
    const stored = key.get();
    if (stored) headers.set("X-Kedge-Key", stored);
    const request: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
    if (options.signal) request.signal = options.signal;
    if (options.body !== undefined) {
        headers.set("Content-Type", "application/json");
        request.body = JSON.stringify(options.body);
    }
    let response: Response;
    try {
        response = await fetch(address(path, options.query), request);
    } catch (error) {
        if (options.signal?.aborted && !isTimeout(options.signal)) throw error;
        throw new RequestError("The server does not answer.", 0, "");
    }
    if (response.status === 401) onRefused();
    return response;
}

function isTimeout(signal: AbortSignal): boolean {
    return signal.reason instanceof DOMException && signal.reason.name === "TimeoutError";
}

/** Send a request and return the decoded reply. Throws a RequestError with the server's message. */
export async function request<T>(method: string, path: string, options: Options = {}): Promise<T> {
    const limitMs = options.limitMs === undefined ? ANSWER_MS_MAX : options.limitMs;
    const signals = [options.signal, limitMs === null ? undefined : AbortSignal.timeout(limitMs)];
    const signal = AbortSignal.any(signals.filter((one) => one !== undefined));
    const response = await send(method, path, { ...options, signal });
    let text: string;
    try {
        text = await response.text();
    } catch {
        throw new RequestError("The connection to the server was lost.", 0, "");
    }
    if (!response.ok) throw errorOf(response.status, text);
    try {
        return (text ? JSON.parse(text) : null) as T;
    } catch {
        throw new RequestError("Cannot decode the reply of the server.", response.status, "bad_reply");
    }
}

/** Return the error of a reply. For a foreign body (a proxy's page) its message has the status. */
export function errorOf(status: number, text: string): RequestError {
    try {
        const { message, code } = JSON.parse(text) as { message?: unknown; code?: unknown };
        if (typeof message === "string" && message && typeof code === "string") {
            return new RequestError(message, status, code);
        }
    } catch {
        // Not JSON: reported below.
    }
    return new RequestError(`The server returned status ${status}.`, status, "");
}
