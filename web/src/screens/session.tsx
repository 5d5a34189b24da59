/** A session: its transcript, what waits for the user, the queue and the prompt. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Approvals } from "../parts/approval";
import { useDrawer } from "../parts/drawer";
import { folderName, oneLine } from "../parts/format";
import { Header, ThemeButton } from "../parts/header";
import { Link } from "../parts/link";
import { SessionMenu } from "../parts/menus";
import { PromptBox } from "../parts/prompt_box";
import { Questions } from "../parts/questions";
import { Queue } from "../parts/queue";
import { SidePanel } from "../parts/side_panel";
import { StopButtons } from "../parts/stop_buttons";
import { Transcript } from "../parts/transcript";
import { draftOf } from "../state/drafts";
import { lanePath, sessionPath } from "../state/route";
import type { SessionLoad, Workspace } from "../state/workspace";

export function SessionScreen(props: {
    workspace: Workspace;
    sessionId: string;
    messageId: string;
    onMenu: () => void;
}) {
    const { workspace, sessionId } = props;
    const isPanelOpen = useSignal(false);
    const closePanel = () => (isPanelOpen.value = false);
    const panel = useDrawer<HTMLElement>(isPanelOpen.value, closePanel);
    void workspace.outline.value;
    useEffect(() => {
        if (workspace.isLoaded && !workspace.sessionLoad(sessionId)) void workspace.loadSession(sessionId);
    }, [workspace, sessionId, workspace.isLoaded]);
    const session = workspace.view.session(sessionId);
    const load = workspace.sessionLoad(sessionId);
    const end = workspace.failure.value || endOf(load);
    const both = { workspace, sessionId };
    if (end && (load?.state !== "loaded" || load.isDeleted)) {
        return (
            <>
                <Header title="Session" onMenu={props.onMenu}>
                    <ThemeButton />
                </Header>
                <Ended sessionId={sessionId} text={end} />
            </>
        );
    }
    return (
        <>
            <Header
                title={oneLine(session?.title ?? "") || "New session"}
                detail={
                    <>
                        <span title={workspace.path}>{folderName(workspace.path)}</span>
                        {session?.parent_run_id && (
                            <>
                                {" · "}
                                <Link to={sessionPath(workspace.id, session.parent_session_id)}>
                                    session of the parent agent
                                </Link>
                            </>
                        )}
                    </>
                }
                onMenu={props.onMenu}
            >
                <Link class="icon-button" to={lanePath(workspace.id, sessionId)} title="Lane" aria-label="Lane">
                    ≡
                </Link>
                <SessionMenu {...both} />
                <ThemeButton />
                <button
                    type="button"
                    class="icon-button only-medium"
                    aria-label="Details"
                    aria-expanded={isPanelOpen.value}
                    onClick={() => (isPanelOpen.value = !isPanelOpen.value)}
                >
                    ⋯
                </button>
            </Header>
            <div class="session">
                <div class="session-main">
                    {load?.error && (
                        <p class="notice-line" role="alert">
                            {load.error}
                        </p>
                    )}
                    <Transcript {...both} messageId={props.messageId} key={sessionId} />
                    {end ? (
                        <Ended sessionId={sessionId} text={end} />
                    ) : (
                        <div class="session-foot">
                            <div class="session-acts">
                                <StopButtons {...both} />
                                <Approvals {...both} />
                                <Questions {...both} />
                                <Queue {...both} />
                            </div>
                            <PromptBox {...both} key={sessionId} />
                        </div>
                    )}
                </div>
                {isPanelOpen.value && (
                    <button type="button" class="side-shade" aria-label="Hide details" onClick={closePanel} />
                )}
                <aside
                    class={`session-side${isPanelOpen.value ? " is-open" : ""}`}
                    aria-label="Details of the session"
                    ref={panel}
                    tabIndex={-1}
                >
                    <div class="side-head only-medium">
                        <h2>Details</h2>
                        <button type="button" class="icon-button" aria-label="Close details" onClick={closePanel}>
                            ✕
                        </button>
                    </div>
                    <SidePanel {...both} />
                </aside>
            </div>
        </>
    );
}

/** Why the session takes no more prompts, in one sentence; empty: it takes them. */
function endOf(load: SessionLoad | undefined): string {
    if (load?.isDeleted) return "This session was deleted.";
    return load?.isMissing ? "This session does not exist, or was deleted." : "";
}

/** The end of a session on the page. What the user has typed stays, to be copied. */
function Ended({ sessionId, text }: { sessionId: string; text: string }) {
    const draft = draftOf(sessionId).text.value;
    return (
        <div class="ended">
            <p role="alert">{text}</p>
            {draft.trim() && (
                <label class="field-label">
                    Your prompt, which was not sent
                    <textarea class="field" readOnly rows={4} value={draft} />
                </label>
            )}
            <Link to="/">All sessions</Link>
        </div>
    );
}
