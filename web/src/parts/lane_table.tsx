/** The timeline of a session as tables: the same data as the picture. */

import type { LaneRunBody } from "../api/types";
import { sessionPath } from "../state/route";
import type { LaneState } from "../state/lane";
import { cancelMarks, isCovered } from "../view/lane_model";
import { phaseOf } from "../view/lane_layout";
import { duration, oneLine } from "./format";
import { Glyph } from "./lane_glyph";
import { messageOf } from "./lane_picture";
import { activeMs, callText, clock, coverText, queuedMs, stateText, stepText } from "./lane_texts";
import { Link } from "./link";

const COLUMNS = ["#", "Prompt", "State", "Accepted", "Queued", "Active", "Cancelled at", "Steps and calls"];

export function LaneTable({ lane, workspaceId, now }: { lane: LaneState; workspaceId: string; now: number }) {
    void lane.version.value;
    const runs = lane.model.ordered();
    const byId = new Map(runs.map((run) => [run.run_id, run]));
    const cancels = cancelMarks(runs);
    return (
        <div class="lane-tables">
            <table class="figures-table">
                <caption>Runs in the order of acceptance</caption>
                <thead>
                    <tr>
                        {COLUMNS.map((name) => (
                            <th key={name} scope="col">
                                {name}
                            </th>
                        ))}
                    </tr>
                </thead>
                <tbody>
                    {runs.map((run) => {
                        const active = activeMs(run, now);
                        const covering = cancels.filter((cancel) => isCovered(run, cancel));
                        return (
                            <tr key={run.run_id} data-run={run.run_id}>
                                <td class="is-number">{run.seq}</td>
                                <th scope="row">
                                    <Link to={sessionPath(workspaceId, lane.sessionId, messageOf(run, byId))}>
                                        {oneLine(run.prompt) || "(empty)"}
                                    </Link>
                                </th>
                                <td class="is-wide">
                                    <Glyph phase={phaseOf(run)} /> {stateText(run, byId)}
                                </td>
                                <td class="is-number">{clock(run.accepted_at, now)}</td>
                                <td class="is-number">{duration(queuedMs(run, now))}</td>
                                <td class="is-number">{active === null || run.folded_into ? "" : duration(active)}</td>
                                <td>{covering.map((cancel) => clock(cancel.at, now)).join(", ")}</td>
                                <td class="is-wide">
                                    <Steps run={run} now={now} />
                                </td>
                            </tr>
                        );
                    })}
                </tbody>
            </table>
            {cancels.length > 0 && (
                <table class="figures-table">
                    <caption>Cancels</caption>
                    <thead>
                        <tr>
                            <th scope="col">Time</th>
                            <th scope="col">Covers</th>
                            <th scope="col">Does not cover</th>
                        </tr>
                    </thead>
                    <tbody>
                        {cancels.map((cancel) => (
                            <tr key={`${cancel.runId} ${cancel.at}`}>
                                <td class="is-number">{clock(cancel.at, now)}</td>
                                <td>{coverText(cancel, runs)}</td>
                                <td>{cancel.mark === null ? "other runs" : `runs after #${cancel.mark}`}</td>
                            </tr>
                        ))}
                    </tbody>
                </table>
            )}
        </div>
    );
}

function Steps({ run, now }: { run: LaneRunBody; now: number }) {
    const calls = run.steps.reduce((count, step) => count + step.calls.length, 0);
    if (run.steps.length === 0) return null;
    return (
        <details>
            <summary>
                {run.step_count} / {calls}
            </summary>
            <ol class="lane-steps">
                {run.steps.map((step) => (
                    <li key={step.message_id}>
                        {stepText(step, now)}
                        {step.calls.length > 0 && (
                            <ul>
                                {step.calls.map((call) => (
                                    <li key={call.id}>{callText(call, now)}</li>
                                ))}
                            </ul>
                        )}
                    </li>
                ))}
            </ol>
            {run.omitted > 0 && <p class="quiet">{run.omitted} more are not shown.</p>}
        </details>
    );
}
