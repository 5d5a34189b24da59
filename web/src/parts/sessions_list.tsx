/** The sessions of all workspaces with their live state, a search, and the start of a new session. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { RequestError } from "../api/http";
import type { KnownWorkspaceBody, SessionBody } from "../api/types";
import { retryWhileAway } from "../state/retry";
import { navigate, route, sessionPath } from "../state/route";
import {
    browser,
    createSession,
    current,
    listSessions,
    liveRuns,
    openDirectory,
    reachable,
    search,
    sessionLists,
    waitingSessions,
    workspaces,
    type SearchHit,
} from "../state/server";
import { ago, folderName, oneLine } from "./format";
import { Link } from "./link";
import { useRead } from "./use_read";

/** The pause after a key before a search begins. Milliseconds. */
const TYPING_MS = 250;
/** Sessions that are listed at once. The search finds the others. Items. */
const SESSIONS_MAX = 100;

type SessionState = "waiting" | "active" | "queued" | "idle";
const STATE_TEXTS: Record<SessionState, string> = {
    waiting: "waits for you",
    active: "running",
    queued: "queued",
    idle: "",
};

export function SessionsList({ onNavigate }: { onNavigate: () => void }) {
    const query = useSignal("");
    const selected = route.value;
    const selectedId = "workspaceId" in selected ? selected.workspaceId : "";
    const known = workspaces.value;
    const mayCreate = browser.value?.rights !== "read_only";
    return (
        <nav class="sessions" aria-label="Sessions">
            <div class="sessions-top">
                <Link to="/" class="brand" onNavigate={onNavigate}>
                    <img src="/icon.svg" alt="" width="22" height="22" /> kedge
                </Link>
                <input
                    type="search"
                    class="field"
                    placeholder="Search messages"
                    aria-label="Search messages in all workspaces"
                    value={query.value}
                    onInput={(event) => (query.value = event.currentTarget.value)}
                />
            </div>
            <div class="sessions-body">
                {query.value.trim() ? (
                    <SearchResults text={query.value.trim()} onNavigate={onNavigate} />
                ) : (
                    <>
                        {known === null && <p class="quiet sessions-note">Loading …</p>}
                        {known?.length === 0 && <p class="quiet sessions-note">No workspace yet.</p>}
                        {known?.map((workspace, index) => (
                            <WorkspaceGroup
                                key={workspace.id}
                                workspace={workspace}
                                isSelected={workspace.id === selectedId}
                                isLatest={index === 0}
                                mayCreate={mayCreate}
                                onNavigate={onNavigate}
                            />
                        ))}
                    </>
                )}
            </div>
            <div class="sessions-foot">
                {mayCreate && <DirectoryForm onNavigate={onNavigate} />}
                <div class="sessions-links">
                    <Link to="/lanes" onNavigate={onNavigate}>
                        Lanes
                    </Link>
                    <Link to="/stats" onNavigate={onNavigate}>
                        Statistics
                    </Link>
                    <Link to="/settings" onNavigate={onNavigate}>
                        Settings
                    </Link>
                </div>
            </div>
        </nav>
    );
}

function WorkspaceGroup(props: {
    workspace: KnownWorkspaceBody;
    isSelected: boolean;
    /** It is the one that was used last. */
    isLatest: boolean;
    mayCreate: boolean;
    onNavigate: () => void;
}) {
    const { workspace, isSelected } = props;
    const isOpen = useSignal(isSelected || props.isLatest || workspace.live_runs > 0);
    const error = useSignal("");
    const inView = current.value?.id === workspace.id ? current.value : null;
    if (inView) void inView.outline.value;
    const isGone = workspace.directory === "gone";
    useEffect(() => {
        if (isSelected) isOpen.value = true;
    }, [isSelected]);
    useRead(
        async () => {
            if (isOpen.value && !inView) await listSessions(workspace.id);
        },
        () => (error.value = ""),
        (cause) => (error.value = textOf(cause)),
        [reachable.value, isOpen.value, inView === null, workspace.used_at, workspace.live_runs],
    );

    const sessions = inView?.isLoaded ? inView.view.sessions() : (sessionLists.value.get(workspace.id) ?? null);
    const create = async () => {
        error.value = "";
        try {
            const session = await createSession(workspace.id);
            props.onNavigate();
            navigate(sessionPath(workspace.id, session.id));
        } catch (cause) {
            error.value = textOf(cause);
        }
    };
    return (
        <section class="workspace-group" aria-label={workspace.path}>
            <div class="workspace-head">
                <button
                    type="button"
                    class="workspace-name"
                    aria-expanded={isOpen.value}
                    title={workspace.path}
                    onClick={() => (isOpen.value = !isOpen.value)}
                >
                    <span class="chevron" aria-hidden="true" />
                    <span class="workspace-text">{folderName(workspace.path)}</span>
                    {isGone && <span class="tag tag-warning">directory gone</span>}
                    {!isOpen.value && workspace.live_runs > 0 && <span class="dot dot-active" title="running" />}
                </button>
                {props.mayCreate && !isGone && (
                    <button
                        type="button"
                        class="icon-button"
                        aria-label={`New session in ${workspace.path}`}
                        title="New session"
                        onClick={() => void create()}
                    >
                        +
                    </button>
                )}
            </div>
            {error.value && <p class="error-text sessions-note">{error.value}</p>}
            {isOpen.value && (
                <ul class="session-rows">
                    {sessions?.length === 0 && <li class="quiet sessions-note">No session yet.</li>}
                    {sessions?.slice(0, SESSIONS_MAX).map((session) => (
                        <SessionRow
                            key={session.id}
                            workspaceId={workspace.id}
                            session={session}
                            onNavigate={props.onNavigate}
                        />
                    ))}
                </ul>
            )}
        </section>
    );
}

function SessionRow(props: { workspaceId: string; session: SessionBody; onNavigate: () => void }) {
    const { workspaceId, session } = props;
    const selected = route.value;
    const isSelected = "sessionId" in selected && selected.sessionId === session.id;
    const state = stateOf(workspaceId, session);
    return (
        <li>
            <Link
                to={sessionPath(workspaceId, session.id)}
                class={`session-row${isSelected ? " is-selected" : ""}`}
                isCurrent={isSelected}
                onNavigate={props.onNavigate}
            >
                <span class={`dot dot-${state}`} aria-hidden="true" />
                <span class="session-title">{oneLine(session.title) || "New session"}</span>
                <span class="session-time">{STATE_TEXTS[state] || ago(session.updated_at)}</span>
            </Link>
        </li>
    );
}

/** The workspace in view reports its state by events, the others by the polled live Runs and Lanes. */
function stateOf(workspaceId: string, session: SessionBody): SessionState {
    const inView = current.value?.id === workspaceId ? current.value : null;
    if (inView) {
        if (inView.view.asks().some((ask) => ask.session_id === session.id)) return "waiting";
        if (inView.view.active(session.id)) return "active";
        return inView.view.queue(session.id).length > 0 ? "queued" : "idle";
    }
    if (waitingSessions.value.has(session.id)) return "waiting";
    const runs = liveRuns.value.filter((run) => run.session_id === session.id);
    if (runs.some((run) => run.state === "active")) return "active";
    return runs.length > 0 ? "queued" : "idle";
}

function SearchResults({ text, onNavigate }: { text: string; onNavigate: () => void }) {
    const hits = useSignal<SearchHit[] | null>(null);
    const latest = useRef(text);
    latest.current = text;
    useEffect(() => {
        const ended = new AbortController();
        const timer = setTimeout(() => {
            retryWhileAway(
                () => search(text, ended.signal),
                () => ended.signal.aborted,
            )
                .then((found) => {
                    if (latest.current === text) hits.value = found;
                })
                .catch(() => undefined);
        }, TYPING_MS);
        return () => {
            clearTimeout(timer);
            ended.abort();
        };
    }, [text]);
    if (hits.value === null) return <p class="quiet sessions-note">Searching …</p>;
    if (hits.value.length === 0) return <p class="quiet sessions-note">Nothing found.</p>;
    return (
        <ul class="session-rows" aria-label="Search results">
            {hits.value.map((hit) => (
                <li key={`${hit.session_id} ${hit.message_id}`}>
                    <Link
                        class="search-hit"
                        to={sessionPath(hit.workspaceId, hit.session_id, hit.message_id)}
                        onNavigate={onNavigate}
                    >
                        <span class="session-title">{oneLine(hit.session_title) || "New session"}</span>
                        <span class="search-snippet">{oneLine(hit.snippet)}</span>
                    </Link>
                </li>
            ))}
        </ul>
    );
}

/** Open a directory of the machine of the server, and begin a session in it. */
function DirectoryForm({ onNavigate }: { onNavigate: () => void }) {
    const isOpen = useSignal(false);
    const path = useSignal("");
    const error = useSignal("");
    const open = async (event: Event) => {
        event.preventDefault();
        if (!path.value.trim()) return;
        try {
            const workspaceId = await openDirectory(path.value.trim());
            const session = await createSession(workspaceId);
            isOpen.value = false;
            path.value = error.value = "";
            onNavigate();
            navigate(sessionPath(workspaceId, session.id));
        } catch (cause) {
            error.value = textOf(cause);
        }
    };
    if (!isOpen.value) {
        return (
            <button type="button" class="button wide" onClick={() => (isOpen.value = true)}>
                New session in a directory …
            </button>
        );
    }
    return (
        <form class="directory-form" onSubmit={(event) => void open(event)}>
            <input
                class="field"
                aria-label="Directory on the machine of the server"
                placeholder="/path/to/project"
                list="known-directories"
                value={path.value}
                ref={(field) => field?.focus()}
                onInput={(event) => (path.value = event.currentTarget.value)}
                onKeyDown={(event) => event.key === "Escape" && (isOpen.value = false)}
            />
            <datalist id="known-directories">
                {workspaces.value?.map((known) => (
                    <option key={known.id} value={known.path} />
                ))}
            </datalist>
            {error.value && (
                <p class="error-text" role="alert">
                    {error.value}
                </p>
            )}
            <div class="button-row">
                <button type="button" class="button-quiet" onClick={() => (isOpen.value = false)}>
                    Close
                </button>
                <button type="submit" class="button button-main">
                    Start
                </button>
            </div>
        </form>
    );
}

function textOf(cause: unknown): string {
    return cause instanceof RequestError ? cause.message : String(cause);
}
