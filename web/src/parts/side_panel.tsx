/** Details of a session: model, mode, cost, context, todos, kept commands, changed files, extensions. */

import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { JobBody, SessionBody } from "../api/types";
import { setMode } from "../state/actions";
import { canAct } from "../state/me";
import { loadModels, modelsOf } from "../state/models";
import type { Workspace } from "../state/workspace";
import { fileDiffs } from "../view/file_diffs";
import { tokenCount } from "../view/number_text";
import {
    CONTEXT_FULL_PERCENT,
    MODES,
    contextPercent,
    dollars,
    jobState,
    runtime,
    type Mode,
} from "../view/status_text";
import { visibleLine } from "../view/visible_text";
import { ConfirmDialog, Dialog, openDialog } from "./dialogs";
import { Diff } from "./diff";
import { Extensions } from "./extensions";
import { oneLine } from "./format";
import { JobDialog } from "./job_dialog";
import { ModelDialog } from "./model_dialog";
import { useNow } from "./stop_buttons";
import { useRead } from "./use_read";

/** Files listed; the others are counted. Items. */
const LISTED_FILES_MAX = 100;
const FILE_MARKS = { created: "A", updated: "M", deleted: "D" } as const;
const TODO_MARKS = { completed: "✓", in_progress: "●", pending: "○" } as const;

export function SidePanel({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    void workspace.outline.value;
    useRead(
        async () => {
            if (workspace.connects.value > 0) await loadModels(workspace.id);
        },
        () => undefined,
        () => undefined, // the panel works without them; the dialog reports an error
        [workspace.id, workspace.connects.value],
    );
    const session = workspace.view.session(sessionId);
    if (!session) return null;
    const both = { workspace, sessionId };
    return (
        <div class="side">
            <Model {...both} session={session} />
            <ModeChoice {...both} session={session} />
            <Todos session={session} />
            <Jobs {...both} jobs={session.jobs} />
            <Files {...both} />
            <ExtensionsPart workspace={workspace} />
            {session.attached_clients > 1 && (
                <p class="quiet">
                    {session.attached_clients - 1} other client{session.attached_clients > 2 ? "s" : ""}
                </p>
            )}
        </div>
    );
}

function Part({ title, children }: { title: string; children: ComponentChildren }) {
    return (
        <section class="side-part">
            <h2>{title}</h2>
            {children}
        </section>
    );
}

type Both = { workspace: Workspace; sessionId: string };

function Model({ workspace, sessionId, session }: Both & { session: SessionBody }) {
    const models = modelsOf(workspace.id);
    const name =
        session.model ||
        models.find((model) => model.is_default)?.model ||
        String(workspace.body?.config["model"] ?? "");
    const model = models.find((one) => one.model === name);
    const percent = contextPercent(workspace.view, sessionId, model);
    const { input_tokens, output_tokens, cost_usd } = session.usage;
    return (
        <Part title="Model">
            {canAct() ? (
                <button
                    type="button"
                    class="button wide side-choice"
                    onClick={() => openDialog(() => <ModelDialog workspace={workspace} sessionId={sessionId} />)}
                >
                    <span class="visually-hidden">Choose the model: </span>
                    <span class="cut">{visibleLine(name, 100) || "default"}</span>
                    {session.effort && <span class="quiet">{` ${session.effort}`}</span>} ▾
                </button>
            ) : (
                <p>{visibleLine(name, 100)}</p>
            )}
            {percent !== null && (
                <label class={`context${percent >= CONTEXT_FULL_PERCENT ? " is-full" : ""}`}>
                    <span>Context {percent} %</span>
                    <progress max={100} value={percent} />
                    <span class="quiet">of {tokenCount(model?.context_window ?? 0)} tokens</span>
                </label>
            )}
            {input_tokens + output_tokens > 0 && (
                <p class="quiet side-line">
                    {[dollars(cost_usd), `${tokenCount(input_tokens)} in, ${tokenCount(output_tokens)} out`]
                        .filter(Boolean)
                        .join(" · ")}
                </p>
            )}
        </Part>
    );
}

function ModeChoice({ workspace, sessionId, session }: Both & { session: SessionBody }) {
    const description = MODES.find(([mode]) => mode === session.mode)?.[1] ?? "";
    const choose = (select: HTMLSelectElement) => {
        const mode = select.value as Mode;
        // The session decides which mode is shown, also if the change is refused.
        select.value = session.mode;
        if (mode !== "yolo") void setMode(workspace, sessionId, mode);
        else
            openDialog(() => (
                <ConfirmDialog
                    title="Let everything pass?"
                    text="The agent does everything in this session without asking. Deny rules still hold."
                    action="Ask nothing"
                    keep="Keep the present mode"
                    isDangerous
                    onConfirm={() => void setMode(workspace, sessionId, "yolo")}
                />
            ));
    };
    return (
        <Part title="Mode">
            {canAct() && !session.parent_run_id ? (
                <select
                    class="field"
                    aria-label="Mode: what passes without asking"
                    value={session.mode}
                    onChange={(event) => choose(event.currentTarget)}
                >
                    {MODES.map(([mode]) => (
                        <option key={mode} value={mode}>
                            {mode}
                        </option>
                    ))}
                </select>
            ) : (
                <p>{session.mode}</p>
            )}
            <p class={`side-line ${session.mode === "yolo" ? "warning-text" : "quiet"}`}>{description}</p>
        </Part>
    );
}

function Todos({ session }: { session: SessionBody }) {
    const { todos } = session;
    const done = todos.filter(({ status }) => status === "completed").length;
    return (
        <Part title={todos.length > 0 ? `Todos ${done}/${todos.length}` : "Todos"}>
            {todos.length === 0 && <p class="quiet">none</p>}
            <ul class="plain todos">
                {todos.map((todo, index) => (
                    <li key={index} class={`todo-${todo.status}`}>
                        <span aria-label={todo.status.replace("_", " ")}>{TODO_MARKS[todo.status]}</span>{" "}
                        {oneLine((todo.status === "in_progress" && todo.active_form) || todo.content, 500)}
                    </li>
                ))}
            </ul>
        </Part>
    );
}

function Jobs({ workspace, sessionId, jobs }: Both & { jobs: JobBody[] }) {
    const running = jobs.filter(({ state }) => state === "running").length;
    const now = useNow(running > 0);
    if (jobs.length === 0) return null;
    return (
        <Part title={`Kept commands ${running}/${jobs.length}`}>
            <ul class="plain">
                {[...jobs].reverse().map((job) => {
                    const isRunning = job.state === "running";
                    const last = isRunning ? (workspace.view.jobOutput(job.id).trimEnd().split("\n").at(-1) ?? "") : "";
                    return (
                        <li key={job.id}>
                            <button
                                type="button"
                                class="row-button side-row"
                                onClick={() =>
                                    openDialog(() => (
                                        <JobDialog workspace={workspace} sessionId={sessionId} jobId={job.id} />
                                    ))
                                }
                            >
                                <span class={`dot ${isRunning ? "dot-active" : "dot-queued"}`} aria-hidden="true" />
                                <span class="cut">
                                    <span class="quiet">{isRunning ? runtime(job, now) : jobState(job)}</span>{" "}
                                    <code>{oneLine(job.command, 200)}</code>
                                    {last && <span class="quiet job-last">{oneLine(last, 200)}</span>}
                                </span>
                            </button>
                        </li>
                    );
                })}
            </ul>
        </Part>
    );
}

function Files({ workspace, sessionId }: Both) {
    const changed = workspace.view.files(sessionId);
    const below = `${workspace.path.replace(/\/$/, "")}/`;
    const short = (path: string) => visibleLine(path.startsWith(below) ? path.slice(below.length) : path, 1000);
    return (
        <Part title={changed.count > 0 ? `Files changed ${changed.count}` : "Files changed"}>
            {changed.count === 0 && <p class="quiet">none</p>}
            <ul class="plain">
                {changed.files.slice(0, LISTED_FILES_MAX).map(({ path, change }) => (
                    <li key={path}>
                        <button
                            type="button"
                            class="row-button side-row"
                            title={short(path)}
                            onClick={() =>
                                openDialog(() => <FileDialog {...{ workspace, sessionId, path }} name={short(path)} />)
                            }
                        >
                            <span class={`file-mark file-${change}`} aria-label={change}>
                                {FILE_MARKS[change]}
                            </span>
                            <span class="cut cut-start">{short(path)}</span>
                        </button>
                    </li>
                ))}
            </ul>
            {changed.count > LISTED_FILES_MAX && <p class="quiet">and {changed.count - LISTED_FILES_MAX} more</p>}
        </Part>
    );
}

function FileDialog({ workspace, sessionId, path, name }: Both & { path: string; name: string }) {
    void workspace.outline.value;
    const diffs = fileDiffs(workspace.view.conversations.get(sessionId), path, workspace.path);
    return (
        <Dialog title={name} wide>
            {diffs.length === 0 && (
                <p class="quiet">
                    The loaded part of the conversation has no diff of this file. A command may have changed it.
                </p>
            )}
            {diffs.map((diff, index) => (
                <Diff key={index} diff={diff} foldKey={`file:${path}:${index}`} />
            ))}
        </Dialog>
    );
}

function ExtensionsPart({ workspace }: { workspace: Workspace }) {
    const [isOpen, setOpen] = useState(false);
    return (
        <details class="side-part" onToggle={(event) => setOpen(event.currentTarget.open)}>
            <summary>
                <h2>Extensions</h2>
            </summary>
            {isOpen && <Extensions workspace={workspace} />}
        </details>
    );
}
