/** The access of this browser: it exchanges the ticket of a link for a cookie and a key, once. */

import { signal } from "@preact/signals";
import { RequestError, key, request, whenRefused } from "../api/http";
import { forgetTyped } from "./storage";

export type Access =
    | { state: "starting" }
    /** No ticket and no key. */
    | { state: "none" }
    /** The ticket of the link is not valid any more. */
    | { state: "expired" }
    /** The server no longer accepts this browser. */
    | { state: "ended" }
    | { state: "unreachable" }
    | { state: "open" };

export const access = signal<Access>({ state: "starting" });

/** Delays between two attempts to reach the server. Milliseconds. */
const RETRY_MS = [500, 1_000, 2_000, 5_000];

/** Take the ticket out of the address: it must not stay in the history or be copied with the address. */
export function takeTicket(location: Location, history: History): string | null {
    const ticket = new URLSearchParams(location.hash.slice(1)).get("ticket");
    if (ticket !== null) history.replaceState(null, "", location.pathname);
    return ticket;
}

export async function startAccess(): Promise<void> {
    whenRefused(() => {
        if (access.value.state === "open") end();
    });
    const ticket = takeTicket(location, history);
    if (ticket) await logIn(ticket);
    else access.value = { state: key.get() ? "open" : "none" };
}

async function logIn(ticket: string): Promise<void> {
    for (let attempt = 0; ; attempt++) {
        try {
            const reply = await request<{ key: string }>("POST", "/web/login", { body: { ticket } });
            key.set(reply.key);
            access.value = { state: "open" };
            return;
        } catch (error) {
            if (!(error instanceof RequestError) || !error.isTransient) {
                // A browser that already has access keeps it: the user opened an old link again.
                access.value = { state: key.get() ? "open" : "expired" };
                return;
            }
            access.value = { state: "unreachable" };
            const delay = RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)] ?? 0;
            await new Promise((resolve) => setTimeout(resolve, delay));
        }
    }
}

export async function logOut(): Promise<void> {
    await request("POST", "/web/logout");
    end();
}

function end(): void {
    key.forget();
    forgetTyped([localStorage, sessionStorage]);
    access.value = { state: "ended" };
}
