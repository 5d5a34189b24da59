/** Browser notifications, if the user wants them: a Run has ended or asks while the page is hidden. */

import { effect, signal } from "@preact/signals";
import type { ViewChanges } from "../view/conversation";
import { isApproval } from "../view/ask_text";
import { visibleLine } from "../view/visible_text";
import { announce } from "./announcements";
import { current } from "./server";
import type { Workspace } from "./workspace";

const STORED = "kedge.notifications";

/** "unavailable": the page was not served securely. "unsupported": the browser shows none of a page without worker. */
export type NotificationState = "on" | "off" | "refused" | "unavailable" | "unsupported";

function initial(): NotificationState {
    if (typeof Notification === "undefined") return "unavailable";
    if (Notification.permission === "denied") return "refused";
    return Notification.permission === "granted" && localStorage.getItem(STORED) ? "on" : "off";
}

export const notifications = signal<NotificationState>("off");

export async function setNotifications(isOn: boolean): Promise<void> {
    if (isOn && typeof Notification !== "undefined") {
        const permission = await Notification.requestPermission();
        if (permission === "granted") localStorage.setItem(STORED, "1");
    } else localStorage.removeItem(STORED);
    notifications.value = initial();
    // The first one shows the user what they look like, and whether this browser has them at all.
    if (notifications.value === "on") notify("notifications are on", "", "on");
}

/** Follow the workspace in view: announce asks and ends of Runs, and notify while the page is hidden. */
export function followNotifications(): void {
    notifications.value = initial();
    effect(() => {
        const workspace = current.value;
        return workspace?.subscribe((changes) => report(workspace, changes));
    });
}

function report(workspace: Workspace, changes: ViewChanges): void {
    const { view } = workspace;
    for (const ask of changes.asked) {
        const title = view.session(ask.session_id)?.title ?? "";
        const text = isApproval(ask) ? `${visibleLine(ask.tool_name)} needs your approval` : "a question";
        show(text, title, ask.id);
    }
    for (const ended of changes.ended) {
        const session = view.session(ended.session_id);
        if (!session || view.isChild(session.id)) continue;
        show(ended.outcome, session.title, ended.run_id);
    }
}

function show(text: string, title: string, tag: string): void {
    const name = visibleLine(title, 60) || "a session";
    announce(`${name}: ${text}`);
    if (!document.hidden || notifications.peek() !== "on") return;
    notify(text, name, tag);
}

function notify(text: string, body: string, tag: string): void {
    try {
        const shown = new Notification(`kedge: ${text}`, { body, tag, icon: "/icon-192.png" });
        shown.onclick = () => {
            window.focus();
            shown.close();
        };
    } catch {
        // Browsers of Android refuse the constructor. The page has no service worker, which could replace it.
        localStorage.removeItem(STORED);
        notifications.value = "unsupported";
    }
}
