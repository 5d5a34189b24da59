/** The rules that earlier answers allowed. No event reports changes of them, so they are loaded when it opens. */

import { useState } from "preact/hooks";
import { call } from "../api/call";
import { clientId } from "../api/client";
import { RequestError } from "../api/http";
import type { GrantBody } from "../api/types";
import { retry } from "../state/in_order";
import type { Workspace } from "../state/workspace";
import { byAuthor } from "../view/author_text";
import { visible } from "../view/visible_text";
import { Dialog } from "./dialogs";
import { ago, oneLine } from "./format";
import { useRead } from "./use_read";

export function GrantsDialog({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    const [grants, setGrants] = useState<GrantBody[] | null>(null);
    const [revoked, setRevoked] = useState<ReadonlySet<string>>(new Set());
    const [problem, setProblem] = useState("");
    const path = { id: workspace.id };

    const attempt = async (work: () => Promise<void>) => {
        try {
            setProblem("");
            await work();
        } catch (error) {
            if (!(error instanceof RequestError)) throw error;
            setProblem(error.message);
        }
    };
    useRead(
        () => call("get", "/v1/workspaces/{id}/permissions/grants", { path }),
        (listed) => {
            setGrants(listed.sort((a, b) => b.created_at - a.created_at || (a.id < b.id ? 1 : -1)));
            setProblem("");
        },
        (error) => setProblem(error.message),
        [workspace.connects.value],
    );
    const revoke = (grant: GrantBody) =>
        attempt(async () => {
            const route = "/v1/workspaces/{id}/permissions/grants/{grant_id}";
            try {
                await retry(() => call("delete", route, { path: { ...path, grant_id: grant.id } }));
            } catch (error) {
                // Another client revoked it.
                if (!(error instanceof RequestError) || error.code !== "grant_not_found") throw error;
            }
            setRevoked(new Set([...revoked, grant.id]));
        });
    const scope = (id: string) =>
        !id
            ? "always"
            : id === sessionId
              ? "this session"
              : `session: ${oneLine(workspace.view.session(id)?.title ?? id, 60)}`;

    return (
        <Dialog title="Rules of earlier answers" wide>
            {problem && (
                <p class="error-text" role="alert">
                    {problem}
                </p>
            )}
            {grants?.length === 0 && <p class="quiet">no grants</p>}
            <ul class="rows">
                {(grants ?? []).map((grant) => (
                    <li key={grant.id} class="row">
                        <span>
                            {revoked.has(grant.id) ? (
                                <s>{visible(grant.rule, "")}</s>
                            ) : (
                                <code>{visible(grant.rule, "")}</code>
                            )}
                            <br />
                            <span class="quiet">
                                {[
                                    revoked.has(grant.id) ? "revoked" : "",
                                    scope(grant.session_id),
                                    ago(grant.created_at),
                                    byAuthor(grant.author).trim() ||
                                        (grant.given_by === clientId ? "by this client" : ""),
                                ]
                                    .filter(Boolean)
                                    .join(" · ")}
                            </span>
                        </span>
                        <button
                            type="button"
                            class="button"
                            disabled={revoked.has(grant.id)}
                            onClick={() => void revoke(grant)}
                        >
                            Revoke
                        </button>
                    </li>
                ))}
            </ul>
        </Dialog>
    );
}
