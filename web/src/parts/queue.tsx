/** The queued prompts of a session, in the order in which they start. */

import { useSignal } from "@preact/signals";
import type { RunBody } from "../api/types";
import { foldIn, move, moveTo, remove } from "../state/actions";
import { announce } from "../state/announcements";
import { draftOf } from "../state/drafts";
import { canAct } from "../state/me";
import type { Workspace } from "../state/workspace";
import { authorName } from "../view/author_text";
import { oneLine } from "./format";

/** The acts on a queued prompt: its key, its button, and what it does, in the words of the terminal. */
const ACTS = [
    ["edit", "e", "✎", "Edit in the prompt"],
    ["up", "Shift+Up", "↑", "Move up"],
    ["down", "Shift+Down", "↓", "Move down"],
    ["next", "n", "⤒", "Make next"],
    ["fold", "f", "⤵", "Fold into the active run"],
    ["remove", "Delete", "✕", "Remove; the text returns to the prompt"],
] as const;
type Act = (typeof ACTS)[number][0];

const KEYS: Record<string, Act> = {
    e: "edit",
    n: "next",
    f: "fold",
    d: "remove",
    Delete: "remove",
    K: "up",
    J: "down",
};

const KEY_HELP = "· e edit · n next · f fold · Delete remove · Shift+↑↓ move";

export function Queue({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    void workspace.outline.value;
    const dragged = useSignal("");
    const over = useSignal("");
    const queue = workspace.view.queue(sessionId);
    if (queue.length === 0) return null;
    const mayAct = canAct();

    const act = async (name: Act, run: RunBody) => {
        const index = queue.findIndex(({ run_id }) => run_id === run.run_id);
        if (name === "edit") {
            draftOf(sessionId).edit(run);
            document.getElementById("prompt")?.focus();
        } else if (name === "fold") await foldIn(workspace, run);
        else if (name === "remove") await remove(workspace, run);
        else {
            const by = name === "up" ? -1 : name === "down" ? 1 : -queue.length;
            const place = Math.max(0, Math.min(queue.length - 1, index + by));
            if (place === index) return;
            await move(workspace, run, by);
            announce(`Moved to place ${place + 1} of ${queue.length}`);
        }
    };

    const onKey = (event: KeyboardEvent & { currentTarget: HTMLElement }, run: RunBody) => {
        if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
        const by = event.key === "ArrowUp" ? -1 : event.key === "ArrowDown" ? 1 : 0;
        if (by && !event.shiftKey) {
            const other = by < 0 ? event.currentTarget.previousElementSibling : event.currentTarget.nextElementSibling;
            if (other instanceof HTMLElement) other.focus();
        } else {
            const name = by ? (by < 0 ? "up" : "down") : KEYS[event.key];
            if (!name || !mayAct) return;
            void act(name, run);
        }
        event.preventDefault();
    };

    const drop = (event: DragEvent, target: RunBody) => {
        event.preventDefault();
        event.stopPropagation();
        const from = queue.findIndex(({ run_id }) => run_id === dragged.value);
        const to = queue.findIndex(({ run_id }) => run_id === target.run_id);
        const run = queue[from];
        dragged.value = over.value = "";
        if (!run || from === to) return;
        // Dropped on a later one it takes its place, so it comes before the one after it.
        void moveTo(workspace, run, (from < to ? queue[to + 1]?.run_id : target.run_id) ?? null);
    };

    const hasActive = workspace.view.active(sessionId) !== null;
    return (
        <section class="queue" aria-label="Queued prompts">
            <h2 class="foot-title">
                {queue.length} queued
                {mayAct && <span class="quiet only-wide"> {KEY_HELP}</span>}
            </h2>
            <ol class="queue-list">
                {queue.map((run, index) => (
                    <li
                        key={run.run_id}
                        class={`queue-row${over.value === run.run_id ? " is-over" : ""}`}
                        tabIndex={0}
                        data-run={run.run_id}
                        draggable={mayAct}
                        onKeyDown={(event) => onKey(event, run)}
                        onDragStart={(event) => {
                            dragged.value = run.run_id;
                            event.dataTransfer?.setData("text/plain", "");
                        }}
                        onDragOver={(event) => {
                            if (!dragged.value) return;
                            event.preventDefault();
                            over.value = run.run_id;
                        }}
                        onDragEnd={() => (dragged.value = over.value = "")}
                        onDrop={(event) => drop(event, run)}
                    >
                        <span class="queue-number">{index + 1}</span>
                        <span class="queue-text">
                            {run.author && <span class="tag">{authorName(run.author)}</span>}{" "}
                            {run.folds && <span class="tag">folds into the run</span>}{" "}
                            {oneLine(run.prompt, 300) || "(attachment)"}
                        </span>
                        {mayAct && (
                            <span class="queue-acts">
                                {ACTS.filter(([name]) =>
                                    isOffered(name, index, queue.length, hasActive && !run.folds),
                                ).map(([name, key, mark, label]) => (
                                    <button
                                        key={name}
                                        type="button"
                                        class="icon-button"
                                        title={`${label} (${key})`}
                                        aria-label={`${label}: ${oneLine(run.prompt, 40)}`}
                                        onClick={() => void act(name, run)}
                                    >
                                        {mark}
                                    </button>
                                ))}
                            </span>
                        )}
                    </li>
                ))}
            </ol>
        </section>
    );
}

function isOffered(name: Act, index: number, count: number, canFold: boolean): boolean {
    if (name === "up") return index > 0;
    if (name === "down") return index < count - 1;
    if (name === "next") return index > 1;
    return name !== "fold" || canFold;
}
