/**
 * Approvals of a session, one at a time, with everything the decision depends on.
 *
 * The buttons take effect a moment after an approval appears: a click meant for something else must not answer it. The
 * approval on the screen stays until it is closed, whatever else arrives.
 */

import { useEffect, useRef, useState } from "preact/hooks";
import { clientId } from "../api/client";
import { RequestError } from "../api/http";
import type { PermissionRequest } from "../api/types";
import { answer, type Answer } from "../state/actions";
import { canAct, hasOneSession } from "../state/me";
import { notify } from "../state/notices";
import { sessionPath } from "../state/route";
import type { Workspace } from "../state/workspace";
import {
    approvalDiff,
    approvalFields,
    approvalTitle,
    asksInOrder,
    closedText,
    isApproval,
    isFor,
} from "../view/ask_text";
import type { Ask } from "../view/conversation";
import { visible, visibleDiff } from "../view/visible_text";
import { closeDialog, openDialog } from "./dialogs";
import { DiffText } from "./diff_text";
import { oneLine } from "./format";
import { Link } from "./link";
import { RuleDialog } from "./rule_dialog";

/** Longer than a repeated click, shorter than the time to read a line. Milliseconds. */
const SETTLE_MS = 400;
/** Length of a denial's reason, as the server limits it. Characters. */
const MESSAGE_CHARS_MAX = 10_000;
/** A longer rule has its own line above the buttons. Characters. */
const RULE_IN_BUTTON_CHARS_MAX = 30;

export function Approvals({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    void workspace.outline.value;
    const { view } = workspace;
    const asks = asksInOrder(view, sessionId);
    const own = asks.filter((ask) => isFor(view, ask, sessionId));
    const others = asks.length - own.length;
    const shown = useShown(own);
    const result = useResult(workspace, sessionId, own);
    return (
        <>
            {shown && isApproval(shown) && (
                <Approval
                    key={shown.id}
                    workspace={workspace}
                    ask={shown}
                    origin={originText(workspace, shown, sessionId, own.length)}
                />
            )}
            {result && (
                <p class="ask-result" role="status">
                    {result}
                </p>
            )}
            {others > 0 && (
                <p class="ask-result">
                    <Link to={sessionPath(workspace.id, rootSession(workspace, asks.at(-1)))}>
                        Another session needs your answer
                    </Link>
                </p>
            )}
        </>
    );
}

/** Return the first Ask. The one on the screen stays while it is pending. */
export function useShown(asks: readonly Ask[]): Ask | undefined {
    const before = useRef("");
    const shown = asks.find(({ id }) => id === before.current) ?? asks[0];
    before.current = shown?.id ?? "";
    return shown;
}

/** Return the result of the last Ask that this page did not answer, until another one appears or a Run starts. */
function useResult(workspace: Workspace, sessionId: string, asks: readonly Ask[]): string {
    const last = useRef<{ ask: Ask | null; text: string; runId: string }>({ ask: null, text: "", runId: "" });
    const current = last.current;
    const active = workspace.view.active(sessionId)?.run_id ?? "";
    const pending = asks.find(({ id }) => id === current.ask?.id) ?? asks[0];
    if (current.ask && !asks.some(({ id }) => id === current.ask?.id)) {
        const closed = workspace.view.closedAsks.get(current.ask.id);
        const isRepeated = asks.some((other) => other.tool_call_id === current.ask?.tool_call_id);
        if (closed && closed.by !== clientId && !isRepeated) {
            current.text = closedText(current.ask, closed);
            current.runId = active;
        }
    }
    current.ask = pending ?? null;
    if (pending || (active && active !== current.runId)) current.text = "";
    return current.text;
}

function originText(workspace: Workspace, ask: Ask, sessionId: string, count: number): string {
    const number = count > 1 ? ` · 1 of ${count}` : "";
    return ask.session_id === sessionId || !isFor(workspace.view, ask, sessionId)
        ? number
        : `${number} · an agent of this session`;
}

/** Return the session of the user in which an Ask is shown: that of the first parent. */
function rootSession(workspace: Workspace, ask: Ask | undefined): string {
    let run = ask && workspace.view.run(ask.run_id);
    let sessionId = ask?.session_id ?? "";
    while (run?.parent_run_id) {
        run = workspace.view.run(run.parent_run_id);
        sessionId = run?.session_id ?? sessionId;
    }
    return sessionId;
}

function Approval({ workspace, ask, origin }: { workspace: Workspace; ask: PermissionRequest; origin: string }) {
    const [reason, setReason] = useState("");
    const [isSent, setSent] = useState(false);
    const isSettled = useSettled();
    const isOpen = useRef(true);
    useEffect(
        () => () => {
            isOpen.current = false;
            if (ruleDialogOf === ask.id) closeDialog();
        },
        [],
    );

    const give = async (action: Answer, message = "", rules: string[] = []) => {
        setSent(true);
        try {
            await answer(workspace, ask, action, message, rules);
        } catch (error) {
            if (isOpen.current) setSent(false);
            throw error;
        }
    };
    const click = (action: Answer, message = "") =>
        give(action, message).catch((error: unknown) => {
            if (!(error instanceof RequestError)) throw error;
            notify(error.message, "error");
        });
    const openRules = () => {
        ruleDialogOf = ask.id;
        openDialog(() => <RuleDialog ask={ask} onAllow={(action, rules) => give(action, "", rules)} />);
    };

    const rule = visible(ask.grant, "");
    const widest = ask.offers.length > (rule ? 1 : 0) ? visible((ask.offers.at(-1) ?? []).join(", "), "") : "";
    const isLong = rule.length > RULE_IN_BUTTON_CHARS_MAX;
    const shownRule = isLong ? "the rule above" : rule;
    const diff = visibleDiff(approvalDiff(ask));
    const isOff = isSent || !isSettled;
    return (
        <section class="ask approval" aria-label="Approval" data-ask={ask.id}>
            <h2 class="ask-title">
                <span class="ask-kind">Approval{origin}</span> {approvalTitle(ask)}
            </h2>
            <div class="ask-text" tabIndex={0} role="group" aria-label="What is asked">
                {approvalFields(ask).map(({ kind, label, text }) => (
                    <div key={label} class={`ask-field ask-${kind}`}>
                        <span class="ask-label">{label}</span>
                        <pre>{text}</pre>
                    </div>
                ))}
                {diff && <DiffText diff={diff} />}
            </div>
            {isLong && <p class="ask-rule">rule: {rule}</p>}
            {widest.length > RULE_IN_BUTTON_CHARS_MAX && <p class="ask-rule">other rule: {widest}</p>}
            {canAct() && (
                <div class="ask-keys" aria-busy={isSent}>
                    <button type="button" class="button button-main" disabled={isOff} onClick={() => click("allow")}>
                        Allow once
                    </button>
                    {rule && (
                        <button type="button" class="button" disabled={isOff} onClick={() => click("allow_session")}>
                            This session: {oneLine(shownRule)}
                        </button>
                    )}
                    {rule && !hasOneSession() && (
                        <button type="button" class="button" disabled={isOff} onClick={() => click("allow_always")}>
                            Always: {oneLine(shownRule)}
                        </button>
                    )}
                    {ask.offers.length > 0 && (
                        <button type="button" class="button" disabled={isOff} onClick={openRules}>
                            {widest
                                ? `Other rule${widest.length <= RULE_IN_BUTTON_CHARS_MAX ? `: ${widest}` : ""} …`
                                : "Edit the rule …"}
                        </button>
                    )}
                    <form
                        class="ask-deny"
                        onSubmit={(event) => {
                            event.preventDefault();
                            if (!isOff) void click("deny", reason.trim());
                        }}
                    >
                        <input
                            class="field"
                            aria-label="Reason to deny"
                            placeholder="Reason (optional)"
                            maxLength={MESSAGE_CHARS_MAX}
                            value={reason}
                            onInput={(event) => setReason(event.currentTarget.value)}
                        />
                        <button type="submit" class="button button-danger" disabled={isOff}>
                            Deny
                        </button>
                    </form>
                    {isSent && <span class="quiet">sending your answer …</span>}
                </div>
            )}
        </section>
    );
}

/** The approval whose rule is being chosen. */
let ruleDialogOf = "";

/** False until the component has been on the screen for a moment. */
export function useSettled(): boolean {
    const [isSettled, setSettled] = useState(false);
    useEffect(() => {
        const timer = setTimeout(() => setSettled(true), SETTLE_MS);
        return () => clearTimeout(timer);
    }, []);
    return isSettled;
}
