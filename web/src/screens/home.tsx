/** The first screen: what runs now, and where to begin. */

import type { RunBody } from "../api/types";
import { Header, ThemeButton } from "../parts/header";
import { folderName, oneLine } from "../parts/format";
import { Link } from "../parts/link";
import { sessionPath } from "../state/route";
import { browser, liveRuns, waitingSessions, workspaces } from "../state/server";

export function HomeScreen({ onMenu }: { onMenu: () => void }) {
    const runs = liveRuns.value.filter((run) => !run.parent_run_id);
    const paths = new Map(workspaces.value?.map((known) => [known.id, known.path]));
    return (
        <>
            <Header title="kedge" onMenu={onMenu}>
                <ThemeButton />
            </Header>
            <div class="home">
                <h2>{runs.length > 0 ? "Running now" : "Nothing runs"}</h2>
                {runs.length === 0 && <p class="quiet">{whereToBegin()}</p>}
                <ul class="run-cards">
                    {runs.map((run) => (
                        <RunCard key={run.run_id} run={run} path={paths.get(run.workspace_id) ?? ""} />
                    ))}
                </ul>
            </div>
        </>
    );
}

function RunCard({ run, path }: { run: RunBody; path: string }) {
    const isWaiting = run.state === "active" && waitingSessions.value.has(run.session_id);
    return (
        <li>
            <Link class="run-card" to={sessionPath(run.workspace_id, run.session_id)}>
                <span class={`dot dot-${isWaiting ? "waiting" : run.state}`} aria-hidden="true" />
                <span class="run-prompt">{oneLine(run.prompt)}</span>
                <span class="quiet">
                    {folderName(path)} · {isWaiting ? "waits for you" : run.state}
                    {run.steps > 0 && ` · step ${run.steps}`}
                </span>
            </Link>
        </li>
    );
}

function whereToBegin(): string {
    if (browser.value?.rights === "read_only") return "Choose a session to watch.";
    if (workspaces.value?.length === 0) return "Begin with a new session in a directory of the server's machine.";
    return "Choose a session, or begin one with the + beside a workspace.";
}
