import type { Conversation } from "./conversation";

/** Return the diffs of a file in the results of a conversation, the oldest first. `path` is absolute. */
export function fileDiffs(conversation: Conversation | undefined, path: string, root: string): string[] {
    const diffs: string[] = [];
    for (const { body } of conversation?.ordered() ?? []) {
        for (const { type, data } of body.parts) {
            const metadata = data["metadata"];
            if (type !== "tool_result" || typeof metadata !== "string" || !metadata.includes('"diff"')) continue;
            const { diff, paths } = changeOf(metadata);
            if (diff && paths.some((one) => one === path || `${root.replace(/\/$/, "")}/${one}` === path))
                diffs.push(diff);
        }
    }
    return diffs;
}

/** Return the diff in the metadata of a result, and the files that it changes. */
function changeOf(metadata: string): { diff: string; paths: string[] } {
    try {
        const { diff, path, paths } = JSON.parse(metadata) as { diff?: unknown; path?: unknown; paths?: unknown };
        const all: unknown[] = Array.isArray(paths) ? paths : [path];
        return { diff: typeof diff === "string" ? diff : "", paths: all.filter((one) => typeof one === "string") };
    } catch {
        return { diff: "", paths: [] };
    }
}
