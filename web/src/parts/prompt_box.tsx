/** The prompt: text with history, drafts, attachments, and names that are completed. */

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { edit, submit } from "../state/actions";
import { PASTE_CHARS_MAX, addFiles, pastedText, refusal, sizeText, type Attachment } from "../state/attachments";
import { changedNames, knownFiles, loadFiles, loadNames, offersFor, type Offer } from "../state/completions";
import { draftOf, type Draft } from "../state/drafts";
import { canAct, isSpectator } from "../state/me";
import { mentioned, partialName } from "../state/mentions";
import { notify } from "../state/notices";
import { PromptHistory } from "../state/prompt_history";
import { runShell } from "../state/shell_commands";
import type { Workspace } from "../state/workspace";

/** The pause after a key before files are searched. Milliseconds. */
const TYPING_MS = 150;

/** Whether a prompt sent during a Run is folded into it instead of queued. */
const folds = signal(false);

export function PromptBox({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    if (isSpectator()) return <p class="composer-note quiet">You are watching: this browser may only read.</p>;
    if (!canAct()) return null;
    if (workspace.view.isChild(sessionId)) {
        return <p class="composer-note quiet">This is the session of an agent. Its parent session takes prompts.</p>;
    }
    return <Prompt workspace={workspace} sessionId={sessionId} />;
}

function Prompt({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    void workspace.outline.value;
    const draft = draftOf(sessionId);
    const history = useMemo(() => new PromptHistory(workspace.id), [workspace.id]);
    const element = useRef<HTMLTextAreaElement>(null);
    const text = draft.text.value;
    const editing = draft.editing.value;
    const isBusy = workspace.view.active(sessionId) !== null;
    useHeight(element, text);
    useDrop((files) => void attach(draft, files));
    const completion = useCompletion(workspace, sessionId, draft, element);

    const send = () => {
        const trimmed = text.trim();
        if (editing) {
            const ended = draft.endEdit();
            if (ended && trimmed) void edit(workspace, ended.run, trimmed);
            return;
        }
        const attachments = draft.attachments.value;
        if (!trimmed && attachments.length === 0) return;
        // Remove the text now: what is typed next belongs to the next prompt.
        history.add(text);
        draft.set("");
        if (trimmed.startsWith("!")) {
            const command = trimmed.slice(1).trim();
            if (command) void runShell(workspace, sessionId, command);
            return;
        }
        draft.attachments.value = [];
        const changed = changedNames(workspace.view.files(sessionId), workspace.path);
        const known = new Set([...changed, ...knownFiles(workspace.id)]);
        const files = mentioned(trimmed, known);
        void submit(workspace, sessionId, { text: trimmed, attachments, files, folds: folds.value });
    };

    const browse = (event: KeyboardEvent, area: HTMLTextAreaElement): boolean => {
        if (event.shiftKey || event.ctrlKey || event.altKey || area.selectionStart !== area.selectionEnd) return false;
        const isAtEnd = area.selectionEnd === area.value.length;
        let earlier: string | null = null;
        if (event.key === "ArrowUp" && (area.selectionStart === 0 || (isAtEnd && shownEntry.current === area.value))) {
            earlier = history.step(-1, area.value);
        } else if (event.key === "ArrowDown" && isAtEnd) {
            earlier = history.step(1, area.value);
        }
        if (earlier === null) return false;
        shownEntry.current = earlier;
        draft.set(earlier);
        return true;
    };
    /** The entry of the history on the screen: Up at its end shows the one before it. */
    const shownEntry = useRef<string | null>(null);

    const onKey = (event: KeyboardEvent & { currentTarget: HTMLTextAreaElement }) => {
        // The Enter that ends the composition of a character sends nothing.
        if (event.isComposing || event.keyCode === 229) return;
        if (completion.onKey(event)) event.preventDefault();
        else if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.altKey) {
            event.preventDefault();
            send();
        } else if (event.key === "Escape" && editing) {
            event.preventDefault();
            draft.endEdit();
        } else if (browse(event, event.currentTarget)) event.preventDefault();
    };

    const onPaste = (event: ClipboardEvent) => {
        const files = [...(event.clipboardData?.files ?? [])];
        const pasted = event.clipboardData?.getData("text/plain") ?? "";
        if (pasted.length > PASTE_CHARS_MAX) {
            event.preventDefault();
            attachText(draft, pasted);
        } else if (files.length > 0 && !pasted) {
            event.preventDefault();
            void attach(draft, files);
        }
    };

    return (
        <form
            class={`composer${editing ? " is-editing" : ""}`}
            aria-label="Prompt"
            onSubmit={(event) => {
                event.preventDefault();
                send();
            }}
        >
            {editing && <p class="composer-edit">Editing a queued prompt</p>}
            {completion.list}
            {!editing && <Attachments draft={draft} />}
            <div class="composer-row">
                {!editing && <AttachButton onFiles={(files) => void attach(draft, files)} />}
                <textarea
                    id="prompt"
                    ref={element}
                    class="composer-text"
                    rows={1}
                    aria-label={editing ? "Queued prompt" : "Prompt"}
                    aria-autocomplete="list"
                    aria-controls={completion.list ? "prompt-offers" : undefined}
                    aria-activedescendant={completion.activeId}
                    placeholder={isBusy ? "Next prompt" : "Prompt"}
                    value={text}
                    onInput={(event) => draft.set(event.currentTarget.value)}
                    onSelect={completion.onMove}
                    onKeyDown={onKey}
                    onPaste={onPaste}
                />
                {editing && (
                    <button type="button" class="button" onClick={() => draft.endEdit()}>
                        Discard
                    </button>
                )}
                <button
                    type="submit"
                    class="button button-main"
                    disabled={!text.trim() && draft.attachments.value.length === 0}
                >
                    {editing
                        ? "Save"
                        : text.trim().startsWith("!")
                          ? "Run"
                          : isBusy
                            ? folds.value
                                ? "Fold"
                                : "Queue"
                            : "Send"}
                </button>
            </div>
            <div class="composer-hints">
                {isBusy && !editing && <WhenBusy />}
                <span class="quiet only-wide">
                    Enter: {enterText(editing !== null, text, isBusy)} · Shift+Enter: new line · / commands · @ files ·
                    ! shell
                </span>
            </div>
        </form>
    );
}

function enterText(isEditing: boolean, text: string, isBusy: boolean): string {
    if (isEditing) return "save the queued prompt · Escape: discard the changes";
    if (text.trim().startsWith("!")) return "run in your shell";
    if (!isBusy) return "send";
    return folds.value ? "fold into the run" : "queue";
}

function WhenBusy() {
    return (
        <fieldset class="segments">
            <legend class="visually-hidden">While a run is active</legend>
            {([false, true] as const).map((value) => (
                <label key={String(value)} class={folds.value === value ? "is-chosen" : ""}>
                    <input
                        type="radio"
                        name="when-busy"
                        checked={folds.value === value}
                        onChange={() => (folds.value = value)}
                    />
                    {value ? "Fold into the run" : "Queue"}
                </label>
            ))}
        </fieldset>
    );
}

// --- attachments -----------------------------------------------------------------------------------------------------

async function attach(draft: Draft, files: readonly File[]): Promise<void> {
    const { attachments, refusals } = await addFiles(files, draft.attachments.value);
    draft.attachments.value = attachments;
    for (const text of refusals) notify(text, "error");
}

/** Attach a long pasted text. What is in the prompt stays. */
function attachText(draft: Draft, text: string): void {
    const attachment = pastedText(text, draft.attachments.value);
    const size = sizeText(attachment.bytes.length);
    const instead = "Save it as a file and name the file in the prompt.";
    const problem = refusal("The pasted text", attachment.bytes.length, draft.attachments.value, instead);
    if (problem) {
        notify(problem, "error");
        return;
    }
    draft.attachments.value = [...draft.attachments.value, attachment];
    notify(`The pasted text has ${size}: it is attached as ${attachment.name}.`);
}

function AttachButton({ onFiles }: { onFiles: (files: File[]) => void }) {
    const input = useRef<HTMLInputElement>(null);
    return (
        <>
            <button
                type="button"
                class="icon-button"
                title="Attach files"
                aria-label="Attach files"
                onClick={() => input.current?.click()}
            >
                +
            </button>
            <input
                ref={input}
                type="file"
                multiple
                hidden
                aria-label="Files to attach"
                onChange={(event) => {
                    onFiles([...(event.currentTarget.files ?? [])]);
                    event.currentTarget.value = "";
                }}
            />
        </>
    );
}

function Attachments({ draft }: { draft: Draft }) {
    const attachments = draft.attachments.value;
    if (attachments.length === 0) return null;
    return (
        <ul class="attachments" aria-label="Attachments">
            {attachments.map((attachment) => (
                <li key={attachment.name} class="attachment">
                    {attachment.type.startsWith("image/") && <Thumbnail attachment={attachment} />}
                    <span class="attachment-name">{attachment.name}</span>
                    <span class="quiet">{sizeText(attachment.bytes.length)}</span>
                    <button
                        type="button"
                        class="icon-button"
                        aria-label={`Remove ${attachment.name}`}
                        onClick={() => {
                            draft.attachments.value = attachments.filter((other) => other !== attachment);
                        }}
                    >
                        ✕
                    </button>
                </li>
            ))}
        </ul>
    );
}

function Thumbnail({ attachment }: { attachment: Attachment }) {
    const url = useMemo(
        () => URL.createObjectURL(new Blob([attachment.bytes], { type: attachment.type })),
        [attachment],
    );
    useEffect(() => () => URL.revokeObjectURL(url), [url]);
    return <img src={url} alt="" width={32} height={32} />;
}

/** Take files that are dropped anywhere on the page: elsewhere the browser would open them instead of the page. */
function useDrop(onFiles: (files: File[]) => void): void {
    const latest = useRef(onFiles);
    latest.current = onFiles;
    useEffect(() => {
        const over = (event: DragEvent) => {
            if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
        };
        const drop = (event: DragEvent) => {
            if (!event.dataTransfer?.types.includes("Files")) return;
            event.preventDefault();
            latest.current([...event.dataTransfer.files]);
        };
        addEventListener("dragover", over);
        addEventListener("drop", drop);
        return () => {
            removeEventListener("dragover", over);
            removeEventListener("drop", drop);
        };
    }, []);
}

// --- text ------------------------------------------------------------------------------------------------------------

/** Let the text grow with its lines; the style sheet limits it. */
function useHeight(element: { current: HTMLTextAreaElement | null }, text: string): void {
    useLayoutEffect(() => {
        const area = element.current;
        if (!area) return;
        area.style.height = "auto";
        area.style.height = `${area.scrollHeight}px`;
    }, [text]);
}

function useCompletion(
    workspace: Workspace,
    sessionId: string,
    draft: Draft,
    element: { current: HTMLTextAreaElement | null },
) {
    const [cursor, setCursor] = useState(0);
    const [chosen, setChosen] = useState(0);
    /** Where the name starts whose list the user has closed. */
    const [closedAt, setClosedAt] = useState(-1);
    const before = draft.text.value.slice(0, cursor);
    const partial = partialName(before);
    const files = changedNames(workspace.view.files(sessionId), workspace.path);
    const offers = partial && partial.start !== closedAt ? offersFor(workspace.id, before, files) : [];
    const index = Math.min(chosen, offers.length - 1);
    const kind = partial?.kind;
    useEffect(() => {
        setChosen(0);
        if (kind) void loadNames(workspace.id, kind);
        else setClosedAt(-1);
    }, [kind, workspace.id]);

    const word = kind === "mention" ? partial?.word : undefined;
    useEffect(() => {
        if (word === undefined) return;
        const ended = new AbortController();
        const timer = setTimeout(() => void loadFiles(workspace.id, word, ended.signal), TYPING_MS);
        return () => {
            clearTimeout(timer);
            ended.abort();
        };
    }, [word, workspace.id]);

    const onMove = () => setCursor(element.current?.selectionEnd ?? 0);
    useLayoutEffect(onMove, [draft.text.value]);

    const take = (offer: Offer) => {
        const area = element.current;
        if (!area || !partial) return;
        const rest = draft.text.value.slice(cursor);
        const end = partial.start + offer.text.length;
        draft.set(before.slice(0, partial.start) + offer.text + rest);
        area.value = draft.text.value;
        area.setSelectionRange(end, end);
        area.focus();
        setCursor(end);
    };

    const onKey = (event: KeyboardEvent): boolean => {
        const offer = offers[index];
        if (!offer || event.shiftKey) return false;
        if (event.key === "ArrowDown") setChosen((index + 1) % offers.length);
        else if (event.key === "ArrowUp") setChosen((index + offers.length - 1) % offers.length);
        else if (event.key === "Escape") setClosedAt(partial?.start ?? -1);
        else if (event.key === "Tab" || (event.key === "Enter" && offer.text.trim() !== before.slice(partial?.start)))
            take(offer);
        else return false;
        return true;
    };

    const list = offers.length > 0 && (
        <ul id="prompt-offers" class="offers" role="listbox" aria-label="Names">
            {offers.map((offer, number) => (
                <li
                    key={offer.name}
                    id={`offer-${number}`}
                    role="option"
                    aria-selected={number === index}
                    class={number === index ? "is-chosen" : ""}
                    onMouseDown={(event) => {
                        event.preventDefault();
                        take(offer);
                    }}
                >
                    <span>{offer.name}</span> <span class="quiet">{offer.detail}</span>
                </li>
            ))}
        </ul>
    );
    return { list, onKey, onMove, activeId: offers.length > 0 ? `offer-${index}` : undefined };
}
