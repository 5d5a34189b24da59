/** The progress of the active Run, and the buttons that stop it. */

import { useEffect, useState } from "preact/hooks";
import type { RunBody } from "../api/types";
import { runToStop, stopAll, stopRun } from "../state/actions";
import { canAct } from "../state/me";
import { sendingIn } from "../state/outbox";
import { shellCommands, stopShell } from "../state/shell_commands";
import type { Workspace } from "../state/workspace";
import { duration } from "../view/number_text";
import { dollars } from "../view/status_text";
import { oneLine } from "./format";

export function StopButtons({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    void workspace.outline.value;
    const { view } = workspace;
    const active = view.active(sessionId);
    const command = shellCommands.value.get(sessionId)?.[0];
    const sending = sendingIn(sessionId).length;
    const count = view.queue(sessionId).length + sending + (active ? 1 : 0);
    const now = useNow(Boolean(active || command));
    if (count === 0 && !command) return null;
    const runId = runToStop(workspace, sessionId);
    const status = command
        ? [`running !${oneLine(command.command, 60)}`, duration(seconds(command.startedAt, now))]
        : statusOf(workspace, sessionId, active, sending, now);
    return (
        <section class="run-line" aria-label="The active run">
            <span
                class={`dot ${active && isWaiting(workspace, active) ? "dot-waiting" : "dot-active"}`}
                aria-hidden="true"
            />
            <span class="run-status">{status.filter(Boolean).join(" · ")}</span>
            {canAct() && (
                <span class="run-stops">
                    {command && (
                        <button type="button" class="button" onClick={() => stopShell(sessionId)}>
                            Stop this command
                        </button>
                    )}
                    {runId && (
                        <button
                            type="button"
                            class="button"
                            disabled={active?.stopping ?? false}
                            title="Stop the active run. Queued prompts then start."
                            onClick={() => void stopRun(workspace, sessionId, runId)}
                        >
                            Stop this run
                        </button>
                    )}
                    {count > 1 && (
                        <button
                            type="button"
                            class="button button-danger"
                            title="Stop all runs accepted until now. Queued prompts return to the prompt."
                            onClick={() => void stopAll(workspace, sessionId)}
                        >
                            Stop everything so far ({count})
                        </button>
                    )}
                </span>
            )}
        </section>
    );
}

function statusOf(
    workspace: Workspace,
    sessionId: string,
    active: RunBody | null,
    sending: number,
    now: number,
): string[] {
    if (!active) return [sending ? "sending" : "starting"];
    const { input_tokens, output_tokens, cost_usd } = active.usage;
    const retry = workspace.view.conversations.get(sessionId)?.retries.get(active.run_id);
    return [
        active.stopping ? "stopping" : isWaiting(workspace, active) ? "waiting for you" : "working",
        active.steps ? `step ${active.steps}` : "starting",
        duration(seconds(active.started_at ?? active.accepted_at, now)),
        input_tokens ? `${(input_tokens + output_tokens).toLocaleString("en")} tokens` : "",
        dollars(cost_usd),
        retry
            ? `${oneLine(retry.error, 60)} · attempt ${retry.attempt} of ${retry.attempts_max} in ${retry.wait_s} s`
            : "",
    ];
}

function isWaiting(workspace: Workspace, active: RunBody): boolean {
    return workspace.view.asks().some((ask) => ask.run_id === active.run_id);
}

function seconds(since: number, now: number): number {
    return Math.floor(Math.max(0, now - since) / 1000);
}

/** The current time, each second while it is needed. */
export function useNow(isNeeded: boolean): number {
    const [now, setNow] = useState(Date.now());
    useEffect(() => {
        if (!isNeeded) return;
        setNow(Date.now());
        const timer = setInterval(() => setNow(Date.now()), 1000);
        return () => clearInterval(timer);
    }, [isNeeded]);
    return now;
}
