/**
 * Prompts that the server has not accepted yet. They are stored with the tab: after a reload, those that did not reach
 * the server return to the prompt.
 */

import { signal } from "@preact/signals";
import { OUTBOX, readStored, writeStored } from "./storage";

export interface Outgoing {
    runId: string;
    workspaceId: string;
    sessionId: string;
    text: string;
}

/** Prompts being sent by this page, the oldest first. */
export const sending = signal<readonly Outgoing[]>([]);

export function sendingIn(sessionId: string): Outgoing[] {
    return sending.value.filter((one) => one.sessionId === sessionId);
}

export function addOutgoing(outgoing: Outgoing): void {
    sending.value = [...sending.value, outgoing];
    store();
}

export function removeOutgoing(runId: string): void {
    sending.value = sending.value.filter((one) => one.runId !== runId);
    store();
}

function store(): void {
    writeStored(sessionStorage, OUTBOX, sending.value.length > 0 ? sending.value : null);
}

/** Return the prompts that the page was sending when it was reloaded, once. */
export function takeInterrupted(): Outgoing[] {
    const stored = readStored(sessionStorage, OUTBOX, isOutgoing) ?? [];
    store();
    return stored.filter((one) => sending.value.every(({ runId }) => runId !== one.runId));
}

function isOutgoing(value: unknown): value is Outgoing[] {
    return (
        Array.isArray(value) &&
        value.every((one: Partial<Outgoing> | null) =>
            [one?.runId, one?.workspaceId, one?.sessionId, one?.text].every((text) => typeof text === "string"),
        )
    );
}
