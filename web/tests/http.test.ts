import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { clientId } from "../src/api/client";
import { errorOf, request } from "../src/api/http";
import { MemoryStorage } from "./memory_storage";

/** The requests, and the server that answers them. */
let lines: string[];
let answer: (line: string) => Response;

beforeEach(() => {
    lines = [];
    vi.stubGlobal("localStorage", new MemoryStorage());
    vi.stubGlobal("fetch", async (address: string, { method, body }: RequestInit) => {
        const line = `${method} ${address}${body ? ` ${String(body)}` : ""}`;
        lines.push(line);
        await Promise.resolve();
        return answer(line);
    });
});

afterEach(() => vi.unstubAllGlobals());

const OPEN = `POST /v1/workspaces/w1/open {"client_id":"${clientId}"}`;

function refused(status: number, code: string): Response {
    return Response.json({ code, message: `This is ${code}.` }, { status });
}

test("an error has the server's sentence", () => {
    const error = errorOf(409, '{"code": "lane_busy", "message": "A Run is live."}');
    expect([error.message, error.code, error.isTransient]).toEqual(["A Run is live.", "lane_busy", false]);
});

test("the page of a proxy is an error with its status", () => {
    const error = errorOf(502, "<html>bad gateway</html>");
    expect([error.message, error.code, error.isTransient]).toEqual(["The server returned status 502.", "", true]);
});

test("requests in a closed workspace open it once, and are sent again", async () => {
    let isOpen = false;
    answer = (line) => {
        if (line === OPEN) isOpen = true;
        return isOpen ? Response.json(line) : refused(404, "workspace_not_found");
    };
    const submit = request("POST", "/workspaces/w1/agent", { body: { prompt: "x" } });
    const replies = await Promise.all([submit, request("GET", "/workspaces/w1/sessions")]);
    expect(replies).toEqual(['POST /v1/workspaces/w1/agent {"prompt":"x"}', "GET /v1/workspaces/w1/sessions"]);
    expect(lines.filter((line) => line === OPEN)).toHaveLength(1);
    expect(lines).toHaveLength(5);
});

test.each([
    [404, "workspace_not_found"],
    [409, "workspace_closing"],
])("a request that is refused again fails: %d %s", async (status, code) => {
    answer = (line) => (line === OPEN ? Response.json({ id: "w1" }) : refused(status, code));
    await expect(request("GET", "/workspaces/w1/sessions")).rejects.toMatchObject({ status, code });
    expect(lines).toHaveLength(3);
});

test("a workspace that cannot be opened is not asked for twice", async () => {
    answer = () => refused(404, "workspace_not_found");
    await expect(request("GET", "/workspaces/w1/sessions")).rejects.toMatchObject({ code: "workspace_not_found" });
    await expect(request("POST", "/workspaces/w1/open")).rejects.toMatchObject({ code: "workspace_not_found" });
    expect(lines).toEqual(["GET /v1/workspaces/w1/sessions", OPEN, "POST /v1/workspaces/w1/open"]);
});

test("other refusals open nothing, and a reply that is not JSON is an error", async () => {
    answer = () => refused(404, "session_not_found");
    await expect(request("GET", "/workspaces/w1/sessions/s1")).rejects.toMatchObject({ code: "session_not_found" });
    answer = () => new Response("<html>");
    await expect(request("GET", "/workspaces/w1/sessions")).rejects.toMatchObject({ status: 200, code: "bad_reply" });
    expect(lines).toHaveLength(2);
});
