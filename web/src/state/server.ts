/**
 * The server as a whole: its workspaces, the live Runs, and the workspace in view.
 *
 * A browser opens at most six connections to one server over HTTP/1.1, for all its tabs. So only the workspace in view
 * has a stream. The state of the others is polled.
 */

import { signal } from "@preact/signals";
import { call } from "../api/call";
import { clientId } from "../api/client";
import { RequestError, openWorkspace, request } from "../api/http";
import type { KnownWorkspaceBody, RunBody, SearchHitBody, SessionBody, WorkspaceBody } from "../api/types";
import { Workspace } from "./workspace";

/** Live Runs are polled this often, less often on a hidden page. Milliseconds. */
const POLL_MS = 5_000;
const POLL_HIDDEN_MS = 30_000;
/** Workspaces that are searched, the last used first. Items. */
const SEARCHED_WORKSPACES_MAX = 10;
const SEARCH_HITS_MAX = 20;
/** Sessions of a workspace that is not in view. Items. */
const LISTED_SESSIONS_MAX = 30;
/** Lanes of one request; a server runs fewer. Items. */
export const LANES_MAX = 500;

/** The access of this browser, as the server describes it. */
export interface BrowserAccess {
    id: string;
    label: string;
    rights: "full" | "read_only";
    /** Both set: this browser reaches one session and nothing else. */
    workspace_id: string;
    session_id: string;
    created_at: number;
    expires_at: number;
}

export interface SearchHit extends SearchHitBody {
    workspaceId: string;
}

/** Null: not known yet. */
export const browser = signal<BrowserAccess | null>(null);
/** Stored workspaces, the last used first. Null: not known yet. */
export const workspaces = signal<KnownWorkspaceBody[] | null>(null);
/** Live Runs of all workspaces. */
export const liveRuns = signal<RunBody[]>([]);
/** Sessions of all workspaces, by id, in which a Run waits for an answer of the user. */
export const waitingSessions = signal<ReadonlySet<string>>(new Set());
/** Whether the server answers. */
export const reachable = signal(true);
/** The workspace in view. */
export const current = signal<Workspace | null>(null);
/** By workspace that is not in view: its sessions. */
export const sessionLists = signal<ReadonlyMap<string, SessionBody[]>>(new Map());

/** Read the access of this browser, then follow the server until the page is closed. */
export async function startServer(): Promise<void> {
    addEventListener("online", wake);
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden) wake();
    });
    for (;;) {
        await poll();
        await new Promise<void>((resolve) => {
            endWait = resolve;
            setTimeout(resolve, document.hidden ? POLL_HIDDEN_MS : POLL_MS);
        });
    }
}

let endWait: () => void = () => {};

/** Ask the server now. */
export function wake(): void {
    current.value?.wake();
    endWait();
}

async function poll(): Promise<void> {
    try {
        if (!browser.value) {
            const access = await request<{ browser: BrowserAccess | null }>("GET", "/web/access");
            browser.value = access.browser ?? OWNER;
        }
        if (browser.value.session_id) {
            await request("GET", "/web/access");
        } else {
            const [known, runs, lanes] = await Promise.all([
                readWorkspaces(),
                call("get", "/v1/runs", {}),
                call("get", "/v1/lanes", { query: { limit: LANES_MAX } }),
            ]);
            workspaces.value = known.sort((a, b) => b.used_at - a.used_at || b.created_at - a.created_at);
            liveRuns.value = runs;
            waitingSessions.value = new Set(lanes.filter((lane) => lane.asks > 0).map((lane) => lane.session_id));
        }
        reachable.value = true;
    } catch (error) {
        if (!(error instanceof RequestError)) throw error;
        reachable.value = !error.isTransient;
    }
}

/** The access of a page that was opened without a browser's grant. */
const OWNER: BrowserAccess = {
    id: "",
    label: "",
    rights: "full",
    workspace_id: "",
    session_id: "",
    created_at: 0,
    expires_at: 0,
};

async function readWorkspaces(): Promise<KnownWorkspaceBody[]> {
    const known: KnownWorkspaceBody[] = [];
    for (;;) {
        const query = { after: known.at(-1)?.id ?? "", limit: 500 };
        const page = await call("get", "/v1/known-workspaces", { query });
        known.push(...page);
        if (page.length < query.limit) return known;
    }
}

/** Bring a workspace into view. The stream of the one before is closed. */
export function enterWorkspace(workspaceId: string): Workspace {
    const before = current.peek();
    if (before?.id === workspaceId && !before.failure.peek()) return before;
    before?.close();
    const workspace = new Workspace(workspaceId, browser.peek()?.session_id ?? "");
    current.value = workspace;
    void workspace.open();
    return workspace;
}

/** Open a directory, which may be new to the server. Returns the id of its workspace. */
export async function openDirectory(path: string): Promise<string> {
    const body = { path, client_id: clientId };
    const workspace: WorkspaceBody = await call("post", "/v1/workspaces", { body });
    endWait();
    return workspace.id;
}

export async function createSession(workspaceId: string): Promise<SessionBody> {
    await claim(workspaceId);
    return call("post", "/v1/workspaces/{id}/sessions", { path: { id: workspaceId }, body: {} });
}

/** Read the sessions of a workspace that is not in view. */
export async function listSessions(workspaceId: string): Promise<void> {
    await claim(workspaceId);
    const sessions = await call("get", "/v1/workspaces/{id}/sessions", {
        path: { id: workspaceId },
        query: { limit: LISTED_SESSIONS_MAX },
    });
    const own = sessions.filter((session) => !session.parent_run_id);
    sessionLists.value = new Map(sessionLists.value).set(workspaceId, own);
}

/** The server answers requests about open workspaces only; a claim keeps one open for half a minute. */
async function claim(workspaceId: string): Promise<void> {
    if (current.peek()?.id === workspaceId) return;
    await openWorkspace(workspaceId);
}

/**
 * Search the messages of the last used workspaces, the one in view first; skip those that cannot be searched. Throws a
 * RequestError if no server answers.
 */
export async function search(text: string, signal: AbortSignal): Promise<SearchHit[]> {
    const first = current.peek()?.id;
    const ids = (workspaces.peek() ?? []).filter((known) => known.directory !== "gone").map((known) => known.id);
    const ordered = [...(first ? [first] : []), ...ids.filter((id) => id !== first)];
    const hits: SearchHit[] = [];
    for (const workspaceId of ordered.slice(0, SEARCHED_WORKSPACES_MAX)) {
        if (signal.aborted || hits.length >= SEARCH_HITS_MAX) break;
        try {
            await claim(workspaceId);
            const found = await call("get", "/v1/workspaces/{id}/search", {
                path: { id: workspaceId },
                query: { q: text, limit: SEARCH_HITS_MAX },
                signal,
            });
            hits.push(...found.map((hit) => ({ ...hit, workspaceId })));
        } catch (error) {
            if (!(error instanceof RequestError) || error.status === 0) throw error;
        }
    }
    return hits.slice(0, SEARCH_HITS_MAX);
}
