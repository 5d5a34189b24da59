/** A message of the transcript: a prompt of the user, or an answer with its reasoning, calls and end. */

import { Component } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { PartBody, RunBody } from "../api/types";
import { sessionPath } from "../state/route";
import type { Workspace } from "../state/workspace";
import { authorName, byAuthor } from "../view/author_text";
import type { Conversation, ConversationEntry } from "../view/conversation";
import { useFold } from "./folds";
import { duration, oneLine, plural } from "./format";
import { Link } from "./link";
import { markdownOf } from "./markdown";
import { isImage, Output, ToolCard } from "./tool_card";

/** The visible end of streaming reasoning. Characters. */
const THOUGHT_CHARS = 400;
/** A folded prompt. Lines and characters. */
const PROMPT_LINES = 24;
const PROMPT_CHARS = 4_000;

interface MessageProps {
    workspace: Workspace;
    conversation: Conversation;
    entry: ConversationEntry;
    /** The state of the Run, which is drawn below its last message. */
    runState: string;
}

/** It is drawn again only if its entry has a newer version, or its Run another state. */
export class Message extends Component<MessageProps> {
    private drawn: { entry: ConversationEntry; version: number; runState: string } | null = null;

    override shouldComponentUpdate(next: MessageProps): boolean {
        const drawn = this.drawn;
        return (
            !drawn ||
            drawn.entry !== next.entry ||
            drawn.version !== next.entry.version ||
            drawn.runState !== next.runState
        );
    }

    override render(props: MessageProps) {
        const { entry, runState } = props;
        this.drawn = { entry, version: entry.version, runState };
        if (entry.body.role === "user") return <Prompt {...props} />;
        return entry.body.role === "assistant" ? <Answer {...props} /> : null;
    }
}

// --- the user ------------------------------------------------------------------------------------------------------

function Prompt({ workspace, entry }: MessageProps) {
    const { body } = entry;
    const author = authorName(workspace.view.run(body.run_id)?.author);
    const isPlain = body.parts.some(({ type }) => type === "text" || type === "file" || type === "image_url");
    return (
        <article class={isPlain ? "user-message" : "user-note"} aria-label={`Prompt${author && ` of ${author}`}`}>
            {author && <div class="quiet">{author}</div>}
            {body.parts.map((part, index) => (
                <PromptPart key={index} part={part} messageId={body.id} workspaceId={workspace.id} />
            ))}
        </article>
    );
}

function PromptPart({ part, messageId, workspaceId }: { part: PartBody; messageId: string; workspaceId: string }) {
    const data = part.data;
    switch (part.type) {
        case "text":
            return <PromptText text={String(data["command"] || data["text"] || "")} foldKey={messageId} />;
        case "file":
            return <Attachment name={String(data["path"] || "unnamed")} size={Number(data["size"] ?? 0)} />;
        case "image_url": {
            const url = data["url"];
            return isImage(url) ? (
                <img class="card-image" src={url} alt="Attached image" />
            ) : (
                <Attachment name={oneLine(String(url ?? ""), 80)} size={0} />
            );
        }
        case "shell_command":
            return <Shell data={data} foldKey={`${messageId}:shell`} />;
        case "reversal":
            return <Reversal data={data} workspaceId={workspaceId} />;
        default:
            return null;
    }
}

function PromptText({ text, foldKey }: { text: string; foldKey: string }) {
    const [isOpen, toggle] = useFold(`${foldKey}:prompt`, false);
    const trimmed = text.replace(/^\n+|\s+$/g, "");
    if (!trimmed) return null;
    const cut = trimmed.split("\n", PROMPT_LINES).join("\n").slice(0, PROMPT_CHARS);
    const isLong = trimmed.length > cut.length + 200;
    return (
        <div class="user-text">
            {isLong && !isOpen ? `${cut} …` : trimmed}
            {isLong && (
                <button type="button" class="text-button more" onClick={toggle}>
                    {isOpen ? "Show less" : "Show all"}
                </button>
            )}
        </div>
    );
}

function Attachment({ name, size }: { name: string; size: number }) {
    return (
        <span class="attached-file" title={name}>
            <span aria-hidden="true">📎</span> {oneLine(name, 80)}
            {size > 0 && <span class="quiet"> {bytes(size)}</span>}
        </span>
    );
}

function bytes(size: number): string {
    if (size < 1_000) return `${size} B`;
    return size < 1_000_000 ? `${Math.round(size / 1_000)} kB` : `${(size / 1_000_000).toFixed(1)} MB`;
}

/** A command that the user ran. */
function Shell({ data, foldKey }: { data: PartBody["data"]; foldKey: string }) {
    const [isOpen, toggle] = useFold(foldKey, false);
    const code = Number(data["exit_code"] ?? 0);
    const state = code === 0 ? "done" : "failed";
    return (
        <div class={`card card-${state}`}>
            <button type="button" class="card-head" aria-expanded={isOpen} onClick={toggle}>
                <span class={`mark mark-${state}`} role="img" aria-label={state} />
                <span class="card-title">
                    <b>!</b> {oneLine(String(data["command"] ?? ""), 400)}
                </span>
                <span class={`card-summary summary-${state}`}>exit {code}</span>
            </button>
            <Output text={String(data["output"] ?? "")} isOpen={isOpen} linesMax={6} />
        </div>
    );
}

/** An undo, redo or rewind. */
function Reversal({ data, workspaceId }: { data: PartBody["data"]; workspaceId: string }) {
    const list = (name: string) => (Array.isArray(data[name]) ? data[name].map(String) : []);
    const action = String(data["action"] ?? "undo");
    const state = String(data["state"] ?? "done");
    const fork = String(data["fork_session_id"] ?? "");
    const unnamed = Number(data["unnamed"] ?? 0);
    const texts: Record<string, string> = {
        started: "started; its end is not recorded, and each of these files may have either content",
        done: "done",
        stopped: "stopped before its last file; repeat it to complete it",
    };
    return (
        <div class="reversal">
            <div class="reversal-head">
                <span aria-hidden="true">{action === "redo" ? "↷" : "↶"}</span> {action}: {texts[state] ?? state}
                {fork && (
                    <>
                        {" · "}
                        <Link to={sessionPath(workspaceId, fork)}>the conversation as it was</Link>
                    </>
                )}
            </div>
            <ul>
                {list("restored").map((path) => (
                    <li key={path}>
                        {state === "started" ? "to restore" : "restored"} <code>{path}</code>
                    </li>
                ))}
                {list("spared").map((path) => (
                    <li key={path}>
                        kept <code>{path}</code>, which was changed since
                    </li>
                ))}
                {unnamed > 0 && <li>and {plural(unnamed, "more file")}</li>}
            </ul>
        </div>
    );
}

// --- the assistant -------------------------------------------------------------------------------------------------

function Answer(props: MessageProps) {
    const { entry, conversation, workspace } = props;
    const { body } = entry;
    const retry = conversation.retries.get(body.run_id);
    const last = body.parts.length - 1;
    return (
        <article class="answer" aria-label="Answer" aria-busy={!entry.isFinished}>
            {body.parts.map((part, index) => {
                const isComplete = entry.isFinished || index < last;
                switch (part.type) {
                    case "text":
                        return (
                            <Markdown
                                key={index}
                                {...{ entry, index, isComplete }}
                                text={String(part.data["text"] ?? "")}
                            />
                        );
                    case "reasoning":
                        return <Thought key={index} {...{ part, isComplete }} foldKey={`${body.id}:${index}`} />;
                    case "tool_call":
                        return <ToolCard key={index} {...{ workspace, conversation, entry, part }} />;
                    case "finish":
                        return <Finish key={index} data={part.data} run={workspace.view.run(body.run_id)} />;
                    default:
                        return null;
                }
            })}
            {retry && !entry.isFinished && (
                <Note
                    kind="retry"
                    text={
                        `${retry.error} Attempt ${retry.attempt ?? 1} of ${retry.attempts_max ?? 1} ` +
                        `in ${duration(1_000 * (retry.wait_s ?? 0))}.`
                    }
                />
            )}
            {body.is_summary && entry.isFinished && (
                <Note kind="quiet" text="The messages above were summarised. The model sees this summary instead." />
            )}
            <RunEnd {...props} />
        </article>
    );
}

function Markdown(props: { entry: ConversationEntry; index: number; text: string; isComplete: boolean }) {
    const { entry, index, text, isComplete } = props;
    const element = useRef<HTMLDivElement>(null);
    useLayoutEffect(() => {
        const markdown = markdownOf(`${entry.body.id}:${index}`, entry);
        markdown.update(text.replace(/^\n+/, ""), isComplete);
        if (markdown.element.parentElement !== element.current) element.current?.append(markdown.element);
    });
    return <div ref={element} />;
}

function Thought({ part, isComplete, foldKey }: { part: PartBody; isComplete: boolean; foldKey: string }) {
    const [isOpen, toggle] = useFold(foldKey, false);
    const text = String(part.data["thinking"] ?? "").trim();
    if (!text) return null;
    const ms = Number(part.data["finished_at"] ?? 0) - Number(part.data["started_at"] ?? 0);
    const time = part.data["started_at"] && ms >= 1_000 ? ` for ${duration(ms)}` : "";
    const label = isComplete ? `Thought${time}` : "Thinking";
    const end = text.length > THOUGHT_CHARS ? `… ${text.slice(-THOUGHT_CHARS)}` : text;
    return (
        <div class="thought">
            <button type="button" class="thought-head" aria-expanded={isOpen} onClick={toggle}>
                <span class="chevron" aria-hidden="true" /> {label}
            </button>
            {(isOpen || !isComplete) && <div class="thought-text">{isOpen ? text : end}</div>}
        </div>
    );
}

/** Why an answer ended, unless it is complete. */
function Finish({ data, run }: { data: PartBody["data"]; run: RunBody | null }) {
    const message = String(data["message"] ?? "");
    const details = String(data["details"] ?? "");
    switch (data["reason"]) {
        case "end_turn":
        case "tool_use":
            return null;
        case "canceled":
            const wasQueued = run?.reason === "cancelled_in_queue";
            const by = byAuthor(run?.cancelled_by);
            return <Note kind="stopped" text={`Cancelled${wasQueued ? " before it started" : ""}${by}`} />;
        case "max_tokens":
            return <Note kind="stopped" text="The answer reached its length limit. Send a prompt to continue." />;
        case "content_filter":
            return <Note kind="stopped" text="The provider stopped the answer (content filter)." />;
        case "error":
            if (details && message !== "interrupted") {
                const hint = "Send a prompt to continue, or choose another model.";
                return <Note kind="failed" text={`Failed: ${details}`} hint={hint} />;
            }
    }
    const cause = details || message;
    return <Note kind="stopped" text={cause && cause !== "interrupted" ? `Interrupted: ${cause}` : "Interrupted"} />;
}

/** A quiet line below the last message of a Run. */
function RunEnd({ workspace, entry }: MessageProps) {
    const run = workspace.view.run(entry.body.run_id);
    if (run?.state !== "ended" || run.message_id !== entry.body.id) return null;
    const facts: string[] = [];
    const ms = (run.ended_at ?? 0) - (run.started_at ?? 0);
    if (run.started_at && ms >= 1_000) facts.push(duration(ms));
    if (run.steps > 1) facts.push(plural(run.steps, "step"));
    if (run.usage.cost_usd > 0) facts.push(`$${run.usage.cost_usd.toFixed(run.usage.cost_usd < 0.1 ? 4 : 2)}`);
    if (run.cleanup === "failed") facts.push("some processes could not be ended");
    return facts.length > 0 ? <div class="run-end">{facts.join(" · ")}</div> : null;
}

type NoteKind = "stopped" | "failed" | "retry" | "quiet";

function Note({ kind, text, hint = "" }: { kind: NoteKind; text: string; hint?: string }) {
    return (
        <div class={`note note-${kind}`}>
            <span>{text}</span>
            {hint && <span class="quiet">{hint}</span>}
        </div>
    );
}
