/**
 * The reducer against that of Python, with the vectors of `proof/sim/view_vectors.py`: one JSON object per line of the
 * file that KEDGE_VIEW_VECTORS names. `tests/web/test_view_vectors.py` makes the file and runs this test.
 */

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { expect, test } from "vitest";
import type { StreamEvent } from "../src/api/events";
import { ViewChanges, type Conversation } from "../src/view/conversation";
import { WorkspaceView } from "../src/view/workspace_view";

interface Operation {
    op: "reset" | "sessions" | "runs" | "asks" | "files" | "conversation" | "event";
    bodies: never;
    at: number;
    session_id: string;
    event: StreamEvent;
}

interface Vector {
    name: string;
    compare_each: number;
    operations: Operation[];
    changes: unknown[];
    views: unknown[];
}

class Replay {
    readonly view = new WorkspaceView();
    private readonly sessions = new Set<string>();
    private readonly runs = new Set<string>();

    /** Do one operation, and return the changes that an event made. */
    do(given: Operation): unknown {
        // A view may keep and change what it receives, and an operation may occur twice.
        const operation = structuredClone(given);
        const { bodies, at, session_id, event } = operation;
        switch (operation.op) {
            case "reset":
                this.view.reset();
                break;
            case "sessions":
                this.view.loadSessions(bodies, at);
                break;
            case "runs":
                this.view.loadRuns(bodies, at);
                break;
            case "asks":
                this.view.loadAsks(bodies);
                break;
            case "files":
                this.view.loadFiles(session_id, bodies, at);
                break;
            case "conversation":
                this.view.loadConversation(session_id, bodies, at);
                break;
            case "event":
                note(this.sessions, event.payload["session_id"]);
                note(this.runs, event.payload["run_id"]);
                return changesOf(this.view.apply(event));
        }
        return {};
    }

    /** Return the view as JSON: the same as `Replay.dump` of the Python module. */
    dump(): unknown {
        const { view } = this;
        const sessions = [...this.sessions].sort();
        const runs = [...this.runs].sort();
        const bySession = <T>(value: (name: string) => T) => Object.fromEntries(sessions.map((n) => [n, value(n)]));
        const byRun = <T>(value: (name: string) => T) => Object.fromEntries(runs.map((n) => [n, value(n)]));
        return {
            config_problem: view.configProblem,
            extensions: [...view.extensions.values()],
            sessions: view.sessions(),
            known_sessions: bySession((name) => view.session(name)),
            child_sessions: sessions.filter((name) => view.isChild(name)),
            active: bySession((name) => view.active(name)),
            queue: bySession((name) => view.queue(name).map((run) => run.run_id)),
            files: bySession((name) => view.files(name)),
            runs: byRun((name) => view.run(name)),
            children: byRun((name) => view.children(name).map((run) => run.run_id)),
            job_outputs: [0, 1, 2].map((number) => view.jobOutput(`job${number}`)),
            progress: byRun((name) => view.progressOf(name)),
            asks: view.asks(),
            closed_asks: Object.fromEntries(view.closedAsks),
            conversations: Object.fromEntries(
                [...view.conversations].map(([name, conversation]) => [name, conversationOf(view, conversation)]),
            ),
        };
    }
}

function note(names: Set<string>, name: unknown): void {
    if (typeof name === "string" && name) names.add(name);
}

function conversationOf(view: WorkspaceView, conversation: Conversation): unknown {
    return {
        retries: Object.fromEntries(conversation.retries),
        entries: conversation.ordered().map((entry) => ({
            body: entry.body,
            order: entry.order,
            at: entry.at,
            follows: entry.follows,
            version: entry.version,
            is_finished: entry.isFinished,
            calls: entry.body.parts
                .filter((part) => part.type === "tool_call")
                .map((part) => String(part.data["id"]))
                .map((id) => ({
                    id,
                    result: conversation.resultOf(entry, id),
                    progress: conversation.progressOf(entry, id),
                    is_waiting: view.isWaiting(entry.body.run_id, id),
                })),
        })),
    };
}

function changesOf(changes: ViewChanges): unknown {
    const { order, runs, sessions, asks, gap, moved } = changes;
    return {
        messages: [...changes.messages].sort(),
        files: [...changes.files].sort(),
        ended: changes.ended.map((complete) => complete.run_id),
        asked: changes.asked.map((ask) => ask.id),
        ...{ order, runs, sessions, asks, gap, moved },
    };
}

function check(vector: Vector): void {
    const replay = new Replay();
    const { operations, views } = vector;
    operations.forEach((operation, index) => {
        const where = `${vector.name}, operation ${index}: ${JSON.stringify(operation).slice(0, 300)}`;
        const changes = replay.do(operation);
        if (!isDeepStrictEqual(changes, vector.changes[index])) expect(changes, where).toEqual(vector.changes[index]);
        const number = index + 1;
        if (number % vector.compare_each !== 0 && number !== operations.length) return;
        const expected = views[Math.ceil(number / vector.compare_each) - 1];
        const view = replay.dump();
        if (!isDeepStrictEqual(view, expected)) expect(view, where).toEqual(expected);
    });
}

const path = process.env.KEDGE_VIEW_VECTORS;

test.skipIf(!path)("both reducers give the same views", { timeout: 170_000 }, () => {
    const lines = readFileSync(path ?? "", "utf8")
        .trimEnd()
        .split("\n");
    for (const line of lines) check(JSON.parse(line) as Vector);
    expect(lines.length).toBe(Number(process.env.KEDGE_VIEW_VECTORS_COUNT));
});

test("changes of several events add up", () => {
    const [one, two] = [new ViewChanges(), new ViewChanges()];
    one.messages.add("a");
    two.messages.add("b");
    two.gap = true;
    one.add(two);
    expect(changesOf(one)).toMatchObject({ messages: ["a", "b"], gap: true, order: false });
});
