/** The title and the icon of the tab: they show what waits for the user, and what runs. */

import { effect } from "@preact/signals";
import { oneLine } from "../parts/format";
import { route } from "./route";
import { current } from "./server";

export function followTitle(): void {
    effect(() => {
        const workspace = current.value;
        void workspace?.outline.value;
        const here = route.value;
        const sessionId = "sessionId" in here ? here.sessionId : "";
        const waiting = workspace?.view.asks().length ?? 0;
        const session = workspace?.view.session(sessionId);
        const name = session ? oneLine(session.title, 60) || "New session" : "";
        const isActive = workspace?.view.active(sessionId) != null;
        const title = `${waiting > 0 ? `(${waiting}) ` : isActive ? "● " : ""}${name ? `${name} · ` : ""}kedge`;
        if (document.title !== title) document.title = title;
        setIcon(waiting > 0 ? "/icon-waiting.svg" : "/icon.svg");
    });
}

function setIcon(path: string): void {
    const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
    if (link && link.getAttribute("href") !== path) link.setAttribute("href", path);
}
