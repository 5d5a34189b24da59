/** The menu of a session: what a user does with the session as a whole. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import {
    deleteSession,
    exportSession,
    fork,
    redo,
    rename,
    rewind,
    rewindPrompts,
    summarize,
    undo,
    type RewindScope,
} from "../state/actions";
import { canAct, hasOneSession } from "../state/me";
import { notify } from "../state/notices";
import { navigate, sessionPath, workspacePath } from "../state/route";
import type { Workspace } from "../state/workspace";
import { ConfirmDialog, Dialog, TextDialog, closeDialog, openDialog } from "./dialogs";
import { oneLine } from "./format";
import { GrantsDialog } from "./grants_dialog";

/** Length of a session's title, as the server limits it. Characters. */
const TITLE_CHARS_MAX = 200;

const SCOPES: readonly (readonly [RewindScope, string])[] = [
    ["both", "conversation and files"],
    ["conversation", "conversation only; the files keep their changes"],
    ["files", "files only; the conversation stays"],
];

interface Item {
    label: string;
    act: () => void;
    isDangerous?: boolean;
}

export function SessionMenu({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    const isOpen = useSignal(false);
    const root = useRef<HTMLDivElement>(null);
    const list = useRef<HTMLDivElement>(null);
    useEffect(() => {
        if (!isOpen.value) return;
        list.current?.querySelector("button")?.focus();
        const close = (event: Event) => {
            if (!root.current?.contains(event.target as Node)) isOpen.value = false;
        };
        addEventListener("pointerdown", close);
        return () => removeEventListener("pointerdown", close);
    }, [isOpen.value]);

    const onKey = (event: KeyboardEvent) => {
        const buttons = [...(list.current?.querySelectorAll("button") ?? [])];
        const index = buttons.indexOf(document.activeElement as HTMLButtonElement);
        if (event.key === "ArrowDown") buttons[(index + 1) % buttons.length]?.focus();
        else if (event.key === "ArrowUp") buttons[(index + buttons.length - 1) % buttons.length]?.focus();
        else if (event.key === "Home") buttons[0]?.focus();
        else if (event.key === "End") buttons.at(-1)?.focus();
        else if (event.key === "Escape" || event.key === "Tab") {
            isOpen.value = false;
            root.current?.querySelector("button")?.focus();
            if (event.key === "Tab") return;
        } else return;
        event.preventDefault();
        event.stopPropagation();
    };

    return (
        <div class="menu" ref={root}>
            <button
                type="button"
                class="icon-button"
                aria-label="Session menu"
                title="Session menu"
                aria-haspopup="menu"
                aria-expanded={isOpen.value}
                onClick={() => (isOpen.value = !isOpen.value)}
            >
                ⋮
            </button>
            {isOpen.value && (
                <div class="menu-list" role="menu" aria-label="Session" ref={list} onKeyDown={onKey}>
                    {items(workspace, sessionId).map(({ label, act, isDangerous }) => (
                        <button
                            key={label}
                            type="button"
                            role="menuitem"
                            class={isDangerous ? "is-dangerous" : ""}
                            onClick={() => {
                                isOpen.value = false;
                                root.current?.querySelector("button")?.focus();
                                act();
                            }}
                        >
                            {label}
                        </button>
                    ))}
                </div>
            )}
        </div>
    );
}

function items(workspace: Workspace, sessionId: string): Item[] {
    const title = workspace.view.session(sessionId)?.title ?? "";
    const exports: Item[] = (["md", "html", "json"] as const).map((format) => ({
        label: `Export as ${{ md: "Markdown", html: "HTML", json: "JSON" }[format]}`,
        act: () => void exportSession(workspace, sessionId, format),
    }));
    if (!canAct()) return exports;
    const deletion: Item = {
        label: "Delete …",
        isDangerous: true,
        act: () => openDialog(() => <DeleteDialog workspace={workspace} sessionId={sessionId} />),
    };
    const copy: Item = {
        label: "Fork: continue in a copy",
        act: () =>
            void fork(workspace, sessionId).then((copyId) => {
                if (copyId) navigate(sessionPath(workspace.id, copyId));
            }),
    };
    return [
        {
            label: "Rename …",
            act: () =>
                openDialog(() => (
                    <TextDialog
                        title="Rename this session"
                        label="Session title"
                        text={title}
                        charsMax={TITLE_CHARS_MAX}
                        onSave={(text) => void rename(workspace, sessionId, text)}
                    />
                )),
        },
        ...(hasOneSession() ? [] : [copy]),
        { label: "Rewind …", act: () => openRewind(workspace, sessionId) },
        { label: "Undo the file changes of the last run", act: () => void undo(workspace, sessionId) },
        { label: "Redo: take back the last undo", act: () => void redo(workspace, sessionId) },
        { label: "Summarize the history", act: () => void summarize(workspace, sessionId) },
        ...(hasOneSession()
            ? []
            : [
                  {
                      label: "Rules of earlier answers …",
                      act: () => openDialog(() => <GrantsDialog workspace={workspace} sessionId={sessionId} />),
                  },
              ]),
        ...exports,
        deletion,
    ];
}

function DeleteDialog({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    const title = oneLine(workspace.view.session(sessionId)?.title ?? "", 60) || "this session";
    return (
        <ConfirmDialog
            title="Delete this session?"
            text={`“${title}” is deleted with its messages. Its runs are stopped first. This cannot be undone.`}
            action="Delete"
            keep="Keep it"
            isDangerous
            onConfirm={() =>
                void deleteSession(workspace, sessionId).then((isDeleted) => {
                    if (isDeleted && !hasOneSession()) navigate(workspacePath(workspace.id), true);
                })
            }
        />
    );
}

/** Choose what is rewound. `messageId`: the prompt to return to; else it is chosen first. */
export function openRewind(workspace: Workspace, sessionId: string, messageId = ""): void {
    if (rewindPrompts(workspace, sessionId).length === 0) {
        notify("Nothing to rewind: this session has no prompts", "warning");
        return;
    }
    openDialog(() => <RewindDialog workspace={workspace} sessionId={sessionId} messageId={messageId} />);
}

function RewindDialog(props: { workspace: Workspace; sessionId: string; messageId: string }) {
    const { workspace, sessionId } = props;
    const prompts = rewindPrompts(workspace, sessionId);
    const chosen = useSignal(props.messageId || (prompts[0]?.messageId ?? ""));
    const scope = useSignal<RewindScope>("both");
    return (
        <Dialog title="Return to before a prompt" wide>
            <form
                onSubmit={(event) => {
                    event.preventDefault();
                    closeDialog();
                    void rewind(workspace, sessionId, chosen.value, scope.value);
                }}
            >
                <fieldset class="choices choices-long">
                    <legend>The prompt and what followed it are rewound</legend>
                    {prompts.map(({ messageId, text }) => (
                        <label key={messageId} class="choice">
                            <input
                                type="radio"
                                name="prompt"
                                checked={chosen.value === messageId}
                                onChange={() => (chosen.value = messageId)}
                            />
                            <span class="choice-line">{oneLine(text, 300) || "(attachment)"}</span>
                        </label>
                    ))}
                </fieldset>
                <fieldset class="choices">
                    <legend>Rewind</legend>
                    {SCOPES.map(([value, text]) => (
                        <label key={value} class="choice">
                            <input
                                type="radio"
                                name="scope"
                                checked={scope.value === value}
                                onChange={() => (scope.value = value)}
                            />
                            {text}
                        </label>
                    ))}
                </fieldset>
                <div class="button-row">
                    <button type="button" class="button" onClick={closeDialog}>
                        Cancel
                    </button>
                    <button type="submit" class="button button-main">
                        Rewind
                    </button>
                </div>
            </form>
        </Dialog>
    );
}
