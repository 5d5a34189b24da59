/** The extensions of a workspace with their states. They are loaded when the user looks at them. */

import { useRef, useState } from "preact/hooks";
import { call } from "../api/call";
import type { ExtensionBody } from "../api/types";
import { canAct } from "../state/me";
import { reported } from "../state/notices";
import type { Workspace } from "../state/workspace";
import { extensionGroups, offerCounts } from "../view/status_text";
import { visibleLine } from "../view/visible_text";
import { oneLine } from "./format";
import { useRead } from "./use_read";

export function Extensions({ workspace }: { workspace: Workspace }) {
    void workspace.outline.value;
    const [listed, setListed] = useState<ExtensionBody[] | null>(null);
    const [problem, setProblem] = useState("");
    /** The states that arrived on the stream before the list was requested: the list is newer. */
    const before = useRef(new Map<string, ExtensionBody>());
    useRead(
        () => {
            before.current = new Map(workspace.view.extensions);
            return call("get", "/v1/workspaces/{id}/extensions", { path: { id: workspace.id } });
        },
        (extensions) => {
            setListed(extensions);
            setProblem("");
        },
        (error) => setProblem(`Cannot load the extensions: ${error.message}`),
        [workspace, workspace.connects.value],
    );
    if (problem) return <p class="error-text">{problem}</p>;
    if (!listed) return <p class="quiet">loading …</p>;
    if (listed.length === 0) return <p class="quiet">none</p>;
    const current = listed.map((one) => {
        const key = `${one.kind}\n${one.name}`;
        const changed = workspace.view.extensions.get(key);
        return changed && changed.path === one.path && changed !== before.current.get(key) ? changed : one;
    });
    return (
        <>
            {extensionGroups(current).map(([title, group]) => (
                <div key={title}>
                    <h3>{title}</h3>
                    <ul class="plain">
                        {group.map((one) => (
                            <Extension key={`${one.name}\n${one.path}`} workspace={workspace} extension={one} />
                        ))}
                    </ul>
                </div>
            ))}
        </>
    );
}

function Extension({ workspace, extension }: { workspace: Workspace; extension: ExtensionBody }) {
    const isFailed = extension.condition === "failed" || extension.condition === "missing";
    const details = [
        extension.condition.replace("_", " "),
        extension.origin,
        extension.kind === "mcp" ? offerCounts(extension) : "",
    ];
    const path = { id: workspace.id, name: extension.name };
    return (
        <li title={visibleLine(extension.description ?? "", 300)}>
            {visibleLine(extension.name, 80)}{" "}
            <span class={isFailed ? "error-text" : "quiet"}>{details.filter(Boolean).join(" · ")}</span>
            {extension.kind === "mcp" && canAct() && extension.condition !== "disabled" && (
                <button
                    type="button"
                    class="button-quiet"
                    onClick={() => void reported(call("post", "/v1/workspaces/{id}/mcp/{name}/restart", { path }))}
                >
                    Restart
                </button>
            )}
            {extension.error && <p class="error-text">{oneLine(extension.error, 500)}</p>}
        </li>
    );
}
