/** The screen in view, from the path of the address. */

import { signal } from "@preact/signals";

export type Route =
    | { screen: "home" }
    /** A workspace without a session: a place to begin one. */
    | { screen: "workspace"; workspaceId: string }
    | { screen: "session"; workspaceId: string; sessionId: string; messageId: string }
    | { screen: "lane"; workspaceId: string; sessionId: string }
    | { screen: "lanes" }
    | { screen: "stats" }
    | { screen: "settings" }
    | { screen: "unknown" };

/** Return the route of a path. `fragment` names a message of the session, such as `#m-7`. */
export function parseRoute(path: string, fragment = ""): Route {
    const [first = "", ...rest] = path.split("/").slice(1).map(decode);
    if (path === "/") return { screen: "home" };
    if (rest.length === 0 && (first === "lanes" || first === "stats" || first === "settings")) return { screen: first };
    const [workspaceId, word, sessionId, last] = rest;
    if (first !== "w" || !workspaceId) return { screen: "unknown" };
    if (rest.length === 1) return { screen: "workspace", workspaceId };
    if (word !== "s" || !sessionId) return { screen: "unknown" };
    if (rest.length === 3) {
        return { screen: "session", workspaceId, sessionId, messageId: decode(fragment.replace(/^#/, "")) };
    }
    return rest.length === 4 && last === "lane" ? { screen: "lane", workspaceId, sessionId } : { screen: "unknown" };
}

function decode(text: string): string {
    try {
        return decodeURIComponent(text);
    } catch {
        return text;
    }
}

export function workspacePath(workspaceId: string): string {
    return `/w/${encodeURIComponent(workspaceId)}`;
}

export function sessionPath(workspaceId: string, sessionId: string, messageId = ""): string {
    const path = `${workspacePath(workspaceId)}/s/${encodeURIComponent(sessionId)}`;
    return messageId ? `${path}#${encodeURIComponent(messageId)}` : path;
}

export function lanePath(workspaceId: string, sessionId: string): string {
    return `${sessionPath(workspaceId, sessionId)}/lane`;
}

/** Tests of pure parts run without a document. */
const hasPage = typeof location !== "undefined";

function current(): Route {
    return hasPage ? parseRoute(location.pathname, location.hash) : { screen: "home" };
}

export const route = signal<Route>(current());

/** Go to a path of this page. `replace`: the present one does not stay in the history. */
export function navigate(path: string, replace = false): void {
    if (path !== location.pathname + location.hash) {
        if (replace) history.replaceState(null, "", path);
        else history.pushState(null, "", path);
    }
    route.value = current();
}

/** Follow the back and forward buttons. */
export function followRoute(): void {
    addEventListener("popstate", () => (route.value = current()));
}
