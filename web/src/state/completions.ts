/** Names that the prompt completes: prompt commands, resources of MCP servers and files of the workspace. */

import { signal } from "@preact/signals";
import { call } from "../api/call";
import { RequestError } from "../api/http";
import type { ChangedFiles, PromptCommandBody } from "../api/types";
import { bestMatches, mention, partialName, type Partial } from "./mentions";

export interface Offer {
    name: string;
    detail: string;
    /** The text that replaces the partial name. */
    text: string;
}

/** By workspace. They are loaded each time a name is begun: extensions change while an agent works. */
const commands = signal<ReadonlyMap<string, PromptCommandBody[]>>(new Map());
const resources = signal<ReadonlyMap<string, string[]>>(new Map());

/** The files that the server returned last, and all that it returned: those can be attached. */
const files = signal<ReadonlyMap<string, string[]>>(new Map());
const returned = new Map<string, Set<string>>();
/** Kept names. Items, the oldest are dropped first. */
const RETURNED_MAX = 10_000;

/** Load the files whose names match the word. Those that the session changed are offered without it. */
export async function loadFiles(workspaceId: string, word: string, ended: AbortSignal): Promise<void> {
    try {
        const names = await call("get", "/v1/workspaces/{id}/file-names", {
            path: { id: workspaceId },
            query: { q: word },
            signal: ended,
        });
        files.value = new Map(files.value).set(workspaceId, names);
        const known = [...knownFiles(workspaceId), ...names].slice(-RETURNED_MAX);
        returned.set(workspaceId, new Set(known));
    } catch (error) {
        if (!(error instanceof RequestError) && !ended.aborted) throw error;
    }
}

/** Return the files that the server has named. */
export function knownFiles(workspaceId: string): ReadonlySet<string> {
    return returned.get(workspaceId) ?? new Set();
}

/** Load the names of this kind. The old ones are offered meanwhile, and if the server does not answer. */
export async function loadNames(workspaceId: string, kind: Partial["kind"]): Promise<void> {
    const path = { id: workspaceId };
    try {
        if (kind === "command") {
            const listed = await call("get", "/v1/workspaces/{id}/commands", { path });
            commands.value = new Map(commands.value).set(workspaceId, listed);
        } else {
            const listed = await call("get", "/v1/workspaces/{id}/extensions", { path });
            const offers = listed.filter((one) => one.kind === "mcp").flatMap((one) => one.offers ?? []);
            const names = offers.filter((offer) => offer.startsWith("@")).map((offer) => offer.slice(1));
            resources.value = new Map(resources.value).set(workspaceId, names);
        }
    } catch (error) {
        if (!(error instanceof RequestError)) throw error;
    }
}

/** Return the offers for the name being typed before the cursor, the best first. */
export function offersFor(workspaceId: string, before: string, changed: readonly string[]): Offer[] {
    const partial = partialName(before);
    if (!partial) return [];
    if (partial.kind === "command") {
        const listed = new Map((commands.value.get(workspaceId) ?? []).map((one) => [one.name, one]));
        return bestMatches(partial.word, [...listed.keys()]).map((name) => {
            const { argument_hint: hint = "", description = "" } = listed.get(name) ?? {};
            return { name: `/${name}`, detail: `${hint} ${description}`.trim(), text: `/${name} ` };
        });
    }
    const listed = [...(resources.value.get(workspaceId) ?? []), ...changed, ...(files.value.get(workspaceId) ?? [])];
    const names = bestMatches(partial.word, [...new Set(listed)]);
    // Complete already: Enter sends.
    if (names.length === 1 && names[0] === partial.word) return [];
    return names.map((name) => ({ name, detail: "", text: `${mention(name)} ` }));
}

/** Return the existing files that a session changed, relative to the workspace. */
export function changedNames(changed: ChangedFiles, root: string): string[] {
    const below = root.endsWith("/") ? root : `${root}/`;
    const present = changed.files.filter(({ change }) => change !== "deleted").map(({ path }) => path);
    return present
        .filter((path) => !path.includes('"'))
        .map((path) => (path.startsWith(below) ? path.slice(below.length) : path));
}
