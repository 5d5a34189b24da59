/** A kept command with its recent output, and its end. */

import { useState } from "preact/hooks";
import { call } from "../api/call";
import { endJob } from "../state/actions";
import { canAct } from "../state/me";
import type { Workspace } from "../state/workspace";
import { jobState, runtime } from "../view/status_text";
import { Dialog } from "./dialogs";
import { oneLine } from "./format";
import { useRead } from "./use_read";

/** Lines of output that are drawn. `kedge jobs show` prints all that the server has. Lines. */
const DRAWN_LINES_MAX = 500;

export function JobDialog(props: { workspace: Workspace; sessionId: string; jobId: string }) {
    const { workspace, sessionId, jobId } = props;
    void workspace.outline.value;
    const [output, setOutput] = useState("loading …");
    const job = workspace.view.session(sessionId)?.jobs.find(({ id }) => id === jobId);
    const streamed = workspace.view.jobOutput(jobId);
    const path = { id: workspace.id, sid: sessionId, job_id: jobId };
    useRead(
        () => call("get", "/v1/workspaces/{id}/sessions/{sid}/jobs/{job_id}", { path }),
        (shown) => setOutput(shown.output.split("\n").slice(-DRAWN_LINES_MAX).join("\n") || "(no output)"),
        (error) => setOutput(error.message),
        [streamed, job?.state, workspace.connects.value],
    );
    return (
        <Dialog title="Kept command" wide>
            <p>
                <code>$ {oneLine(job?.command ?? "", 300)}</code>
                <br />
                <span class="quiet">{job ? `${jobState(job)} ${runtime(job, Date.now())}` : "not found"}</span>
            </p>
            <pre class="output" tabIndex={0} aria-label="Output">
                {output}
            </pre>
            {job?.state === "running" && canAct() && (
                <div class="button-row">
                    <button
                        type="button"
                        class="button button-danger"
                        onClick={() => void endJob(workspace, sessionId, jobId)}
                    >
                        End this command
                    </button>
                </div>
            )}
        </Dialog>
    );
}
