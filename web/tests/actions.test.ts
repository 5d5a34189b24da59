import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { RunBody } from "../src/api/types";
import * as actions from "../src/state/actions";
import { draftOf } from "../src/state/drafts";
import { notices } from "../src/state/notices";
import { sendingIn } from "../src/state/outbox";
import { WorkspaceView } from "../src/view/workspace_view";
import { MemoryStorage } from "./memory_storage";

/** The server: receives requests in order and answers each with the next reply for its path. */
class Server {
    readonly requests: { line: string; body: Record<string, unknown> }[] = [];
    readonly replies = new Map<string, (Response | "away" | Promise<Response>)[]>();

    reply(path: string, ...replies: (unknown | "away")[]): void {
        const wrapped = replies.map((one) =>
            one === "away" || one instanceof Promise || one instanceof Response ? one : Response.json(one),
        );
        this.replies.set(path, wrapped as (Response | "away" | Promise<Response>)[]);
    }

    readonly fetch = async (address: string, request: RequestInit): Promise<Response> => {
        const path = address.split("?")[0]?.replace("/v1/workspaces/w1", "") ?? "";
        const body = JSON.parse(String(request.body ?? "{}")) as Record<string, unknown>;
        this.requests.push({ line: `${request.method} ${path}`, body });
        const next = this.replies.get(path)?.shift();
        if (next === undefined) throw new Error(`no reply for ${path}`);
        if (next === "away") throw new TypeError("fetch failed");
        return next;
    };

    get lines(): string[] {
        return this.requests.map(({ line }) => line);
    }
}

function refused(status: number, code: string): Response {
    return Response.json({ code, message: `This is ${code}.` }, { status });
}

function run(id: string, state: "active" | "queued", seq: number): RunBody {
    const usage = { input_tokens: 0, output_tokens: 0, cost_usd: 0 };
    return {
        run_id: id,
        session_id: "s1",
        workspace_id: "w1",
        seq,
        state,
        prompt: `prompt of ${id}`,
        accepted_at: seq,
        usage,
        cleanup: "clean",
        stopping: false,
        steps: 0,
        queue_order: seq,
        folds: false,
        context_tokens: 0,
    };
}

let server: Server;
let target: actions.Target;
const PROMPT = { text: "do it", attachments: [], files: [], folds: false };
const CANCELLED = { mark: 1, covered: [], recorded: true, jobs: [] };

beforeEach(() => {
    server = new Server();
    target = { id: "w1", view: new WorkspaceView() };
    target.view.loadRuns([run("r1", "active", 1), run("r2", "queued", 2), run("r3", "queued", 3)], 0);
    vi.stubGlobal("fetch", server.fetch);
    vi.stubGlobal("localStorage", new MemoryStorage());
    vi.stubGlobal("sessionStorage", new MemoryStorage());
    notices.value = [];
    draftOf("s1").set("");
});

afterEach(() => vi.unstubAllGlobals());

test("a prompt is repeated with the same run id while the server is away", async () => {
    server.reply("/agent", "away", refused(503, "starting"), refused(404, "workspace_not_found"), { run_id: "x" });
    server.reply("/open", { id: "w1" });
    await actions.submit(target, "s1", PROMPT);
    const ids = server.requests.filter(({ line }) => line === "POST /agent").map(({ body }) => body["run_id"]);
    expect([ids.length, new Set(ids).size, notices.value]).toEqual([4, 1, []]);
    expect(server.requests[0]?.body).toMatchObject({ prompt: "do it", when_busy: "queue", expand: true });
});

test("a refused prompt returns to the draft with its files", async () => {
    draftOf("s1").set("typed meanwhile");
    server.reply("/agent", refused(429, "queue_full"));
    const file = { name: "a.txt", type: "text/plain", bytes: new Uint8Array([104, 105]) };
    await actions.submit(target, "s1", { ...PROMPT, attachments: [file] });
    expect(draftOf("s1").text.value).toBe("do it\n\ntyped meanwhile");
    expect(draftOf("s1").attachments.value).toEqual([file]);
    expect(notices.value.map(({ text, kind }) => [text, kind])).toEqual([["This is queue_full.", "error"]]);
    expect(server.requests[0]?.body["attachments"]).toEqual([
        { file_path: "a.txt", file_name: "a.txt", mime_type: "text/plain", content: "aGk=" },
    ]);
    draftOf("s1").attachments.value = [];
});

test("a stop waits for the prompt before it, and a prompt after it waits for the stop", async () => {
    let accept: (reply: Response) => void = () => {};
    const accepted = new Promise<Response>((resolve) => (accept = resolve));
    server.reply("/agent", accepted, { run_id: "later" });
    server.reply("/agent/sessions/s1/cancel", CANCELLED);
    const acts = [
        actions.submit(target, "s1", PROMPT),
        actions.stopAll(target, "s1"),
        actions.submit(target, "s1", { ...PROMPT, text: "spared" }),
    ];
    await Promise.resolve();
    expect(sendingIn("s1").map(({ text }) => text)).toEqual(["do it", "spared"]);
    accept(Response.json({ run_id: "first" }));
    await Promise.all(acts);
    expect(server.lines).toEqual(["POST /agent", "POST /agent/sessions/s1/cancel", "POST /agent"]);
    expect(sendingIn("s1")).toEqual([]);
});

test("stopping everything returns the prompts that never started, and is never repeated", async () => {
    const covered = [
        { run_id: "r1", seq: 1, was: "active" },
        { run_id: "r2", seq: 2, was: "queued" },
        { run_id: "r3", seq: 3, was: "queued" },
    ];
    server.reply("/agent/sessions/s1/cancel", { ...CANCELLED, covered });
    await actions.stopAll(target, "s1");
    expect(draftOf("s1").text.value).toBe("prompt of r2\n\nprompt of r3");

    draftOf("s1").set("");
    server.requests.length = 0;
    server.reply("/agent/sessions/s1/cancel", "away");
    for (const { run_id, was } of covered) {
        server.reply(`/agent/runs/${run_id}/cancel`, { ...CANCELLED, covered: [{ run_id, seq: 1, was }] });
    }
    await actions.stopAll(target, "s1");
    const each = ["r2", "r3", "r1"].map((id) => `POST /agent/runs/${id}/cancel`);
    expect(server.lines).toEqual(["POST /agent/sessions/s1/cancel", ...each]);
});

test("a run that is gone needs no stop, and a removed prompt returns to the draft", async () => {
    server.reply("/agent/runs/r9/cancel", refused(404, "run_not_found"));
    await actions.stopRun(target, "s1", "r9");
    expect(notices.value).toEqual([]);
    server.reply("/agent/runs/r2/cancel", { ...CANCELLED, covered: [{ run_id: "r2", seq: 2, was: "queued" }] });
    await actions.remove(target, run("r2", "queued", 2));
    expect(draftOf("s1").text.value).toBe("prompt of r2");
    server.reply("/agent/runs/r3/cancel", { ...CANCELLED, covered: [{ run_id: "r3", seq: 3, was: "active" }] });
    await actions.remove(target, run("r3", "queued", 3));
    expect(draftOf("s1").text.value).toBe("prompt of r2");
    expect(notices.value[0]?.text).toMatch(/already running/);
});

test("a queued run is moved before the one that will follow it", () => {
    const queue = ["a", "b", "c"].map((id, index) => run(id, "queued", index));
    expect(actions.moveBefore(queue, "c", -1)).toBe("b");
    expect(actions.moveBefore(queue, "a", 1)).toBe("c");
    expect(actions.moveBefore(queue, "b", 1)).toBeNull();
    expect(actions.moveBefore(queue, "c", -3)).toBe("a");
    expect(actions.moveBefore(queue, "gone", 1)).toBeUndefined();
});

test("an approval that another client answered is not an error", async () => {
    const ask = { id: "a1", binding: "b" } as never;
    server.reply("/permissions/grant", refused(409, "ask_withdrawn"), { resolved: true }, refused(422, "invalid"));
    expect(await actions.answer(target, ask, "allow")).toBe(false);
    expect(await actions.answer(target, ask, "deny", "no")).toBe(true);
    await expect(actions.answer(target, ask, "allow_always", "", ["shell(("])).rejects.toThrow("This is invalid.");
    expect(server.requests[1]?.body).toEqual({ id: "a1", action: "deny", binding: "b", message: "no", rules: [] });
});
