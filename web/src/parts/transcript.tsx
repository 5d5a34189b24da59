/** The messages of a session. It opens at the end, follows it, and loads earlier messages as the user scrolls up. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Workspace } from "../state/workspace";
import type { ConversationEntry } from "../view/conversation";
import { copyCode } from "./markdown";
import { Message } from "./message";
import { VirtualList, type ListItem } from "./virtual_list";

/** Estimates of heights: a line of text, and the characters in it. */
const LINE_PX = 24;
const LINE_CHARS = 90;
/** How long a message that a link leads to is marked. Milliseconds. */
const MARK_MS = 2_000;

interface Row extends ListItem {
    entry: ConversationEntry;
}

export function Transcript(props: { workspace: Workspace; sessionId: string; messageId: string }) {
    const { workspace, sessionId, messageId } = props;
    void workspace.version.value;
    const list = useRef<VirtualList<Row>>(null);
    const isAtEnd = useSignal(true);
    /** The last row when the user left the end: what is after it is new to them. */
    const seen = useRef("");
    const load = workspace.sessionLoad(sessionId);
    const conversation = workspace.view.conversations.get(sessionId);
    const entries = conversation?.ordered();
    const rows = useMemo(() => rowsOf(entries ?? []), [entries]);
    const isLoaded = load?.state === "loaded";

    useEffect(() => {
        if (!isLoaded || !messageId) return;
        let timer: ReturnType<typeof setTimeout> | undefined;
        void workspace.findMessage(sessionId, messageId).then((exists) => {
            if (!exists) return;
            requestAnimationFrame(() => {
                list.current?.toItem(messageId);
                timer = setTimeout(() => mark(messageId), 50);
            });
        });
        return () => clearTimeout(timer);
    }, [isLoaded, sessionId, messageId]);
    const jumps = workspace.jumps.value;
    useEffect(() => {
        if (jumps > 0) list.current?.toEnd();
    }, [jumps]);

    const end = rows.at(-1)?.key ?? "";
    if (!load || load.state === "loading") return <div class="transcript-note quiet">Loading …</div>;
    if (isLoaded && rows.length === 0) {
        return <div class="transcript-note quiet">No message yet. Write a prompt to begin.</div>;
    }
    return (
        <div class="transcript">
            <VirtualList<Row>
                control={list}
                items={rows}
                label="Transcript"
                onClick={copyCode}
                onNearStart={() => void workspace.loadEarlier(sessionId)}
                onEnd={(value) => {
                    if (!value) seen.current = rows.at(-1)?.key ?? "";
                    isAtEnd.value = value;
                }}
                render={(row) =>
                    conversation && (
                        <Message
                            workspace={workspace}
                            conversation={conversation}
                            entry={row.entry}
                            runState={workspace.view.run(row.entry.body.run_id)?.state ?? ""}
                        />
                    )
                }
            />
            {!isAtEnd.value && (
                <button type="button" class="to-end" onClick={() => list.current?.toEnd()}>
                    <span aria-hidden="true">↓</span> {end === seen.current ? "To the end" : "New messages"}
                </button>
            )}
        </div>
    );
}

/** Results are shown with their calls, so that messages of tools are not rows. */
function rowsOf(entries: ConversationEntry[]): Row[] {
    const shown = entries.filter(({ body }) => body.role === "user" || body.role === "assistant");
    return shown.map((entry) => ({ key: entry.body.id, entry, estimate: estimate(entry) }));
}

function estimate(entry: ConversationEntry): number {
    let lines = 1;
    for (const { type, data } of entry.body.parts) {
        if (type === "text") lines += 1 + String(data["text"] ?? "").length / LINE_CHARS;
        else if (type !== "finish") lines += 2;
    }
    return Math.ceil(lines) * LINE_PX;
}

function mark(messageId: string): void {
    const element = document.querySelector(`[data-key="${CSS.escape(messageId)}"]`);
    element?.classList.add("is-marked");
    setTimeout(() => element?.classList.remove("is-marked"), MARK_MS);
}
