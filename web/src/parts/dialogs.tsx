/** Dialogs above the page. One is open at a time; the browser keeps the focus in it and closes it with Escape. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

type Opened = () => ComponentChildren;

const opened = signal<{ id: number; draw: Opened } | null>(null);
let last = 0;

export function openDialog(draw: Opened): void {
    opened.value = { id: ++last, draw };
}

export function closeDialog(): void {
    opened.value = null;
}

/** The place of the open dialog. */
export function Dialogs() {
    const current = opened.value;
    return current && <div key={current.id}>{current.draw()}</div>;
}

export function Dialog(props: { title: string; wide?: boolean; children: ComponentChildren }) {
    const element = useRef<HTMLDialogElement>(null);
    useEffect(() => {
        const before = document.activeElement;
        element.current?.showModal();
        return () => {
            if (before instanceof HTMLElement && before.isConnected) before.focus();
        };
    }, []);
    return (
        <dialog
            ref={element}
            class={`dialog${props.wide ? " dialog-wide" : ""}`}
            aria-labelledby="dialog-title"
            onClose={closeDialog}
            onClick={(event) => event.target === event.currentTarget && closeDialog()}
        >
            <div class="dialog-head">
                <h2 id="dialog-title">{props.title}</h2>
                <button type="button" class="icon-button" aria-label="Close" onClick={closeDialog}>
                    ✕
                </button>
            </div>
            <div class="dialog-body">{props.children}</div>
        </dialog>
    );
}

/** A confirmation. `text` describes the effect. */
export function ConfirmDialog(props: {
    title: string;
    text: string;
    action: string;
    keep: string;
    isDangerous?: boolean;
    onConfirm: () => void;
}) {
    return (
        <Dialog title={props.title}>
            <p>{props.text}</p>
            <div class="button-row">
                <button type="button" class="button" onClick={closeDialog} autofocus>
                    {props.keep}
                </button>
                <button
                    type="button"
                    class={`button ${props.isDangerous ? "button-danger" : "button-main"}`}
                    onClick={() => {
                        closeDialog();
                        props.onConfirm();
                    }}
                >
                    {props.action}
                </button>
            </div>
        </Dialog>
    );
}

/** One line of text. */
export function TextDialog(props: {
    title: string;
    label: string;
    text: string;
    charsMax: number;
    onSave: (text: string) => void;
}) {
    const [text, setText] = useState(props.text);
    const save = (event: Event) => {
        event.preventDefault();
        if (!text.trim()) return;
        closeDialog();
        props.onSave(text.trim());
    };
    return (
        <Dialog title={props.title}>
            <form onSubmit={save}>
                <label class="field-label">
                    {props.label}
                    <input
                        class="field"
                        value={text}
                        maxLength={props.charsMax}
                        onInput={(event) => setText(event.currentTarget.value)}
                        autofocus
                    />
                </label>
                <div class="button-row">
                    <button type="button" class="button" onClick={closeDialog}>
                        Cancel
                    </button>
                    <button type="submit" class="button button-main" disabled={!text.trim()}>
                        Save
                    </button>
                </div>
            </form>
        </Dialog>
    );
}
