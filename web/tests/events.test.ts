import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import { EventStream, type StreamEvent, type StreamOptions } from "../src/api/events";
import { FrameParser } from "../src/api/frames";
import { RequestError } from "../src/api/http";

const closers: (() => void)[] = [];
afterEach(() => closers.splice(0).forEach((close) => close()));

function frame(type: string, position: number | null, payload: object = {}): string {
    const id = position === null ? "" : `id: ${position}\n`;
    return `${id}data: ${JSON.stringify({ type, payload: { type: "created", payload } })}\n\n`;
}

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

/** Run a stream against a server that gives these answers in turn, until `count` events have arrived. */
async function received(answers: Answer[], count: number, more: Partial<StreamOptions> = {}) {
    const asked: (string | null)[] = [];
    const server = createServer((request, response) => {
        asked.push(new URL(request.url ?? "", "http://x").searchParams.get("after"));
        (answers[asked.length - 1] ?? (() => undefined))(request, response);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const events: StreamEvent[] = [];
    const connected: boolean[] = [];
    const end = await new Promise<RequestError | null>((resolve) => {
        const stream = new EventStream({
            open: (after, signal) =>
                fetch(`http://127.0.0.1:${port}/w${after === null ? "" : `?after=${after}`}`, { signal }),
            onEvents: (batch) => {
                events.push(...batch);
                if (events.length >= count) resolve(null);
            },
            onConnected: (value) => connected.push(value),
            onEnd: resolve,
            random: () => 0,
            ...more,
        });
        closers.push(() => (stream.close(), server.closeAllConnections(), server.close()));
        void stream.run();
    });
    return { asked, events, connected, end };
}

const stream =
    (...pieces: string[]): Answer =>
    (_, response) => {
        response.writeHead(200, { "content-type": "text/event-stream" });
        for (const piece of pieces) response.write(piece);
        response.end();
    };

const refusal =
    (status: number, code: string): Answer =>
    (_, response) => {
        response.writeHead(status).end(JSON.stringify({ code, message: `It is ${code}.` }));
    };

test("frames are the same however the text is cut", () => {
    const text = `: connected\nid: 7\n\n${frame("run", 8)}data: a\r\ndata: b\r\n\r\n: heartbeat\n\nid:9\ndata:\n\n`;
    const whole = new FrameParser().push(text);
    expect(whole.map((one) => one.id)).toEqual(["7", "8", null, "9"]);
    expect(whole[2]?.data).toBe("a\nb");
    for (let size = 1; size < 12; size++) {
        const parser = new FrameParser();
        const pieces = text.match(new RegExp(`[^]{1,${size}}`, "g")) ?? [];
        expect(pieces.flatMap((piece) => parser.push(piece))).toEqual(whole);
    }
});

test("a lost stream resumes at its Position without loss or double", async () => {
    const { asked, events, connected } = await received(
        [
            stream(": connected\nid: 5\n\n", frame("run", 6), frame("delta", null)),
            refusal(503, "starting"),
            stream(frame("run", 6), frame("run", 7)),
        ],
        3,
    );
    expect(asked).toEqual([null, "6", "6"]);
    expect(events.map((event) => [event.type, event.position])).toEqual([
        ["run", 6],
        ["delta", null],
        ["run", 7],
    ]);
    expect(connected).toEqual([true, false, false, true]);
});

test("a stream that was lost before its Position was known reports a gap", async () => {
    const { events } = await received([stream(frame("delta", null)), stream(": connected\nid: 5\n\n")], 2);
    expect(events.map((event) => event.type)).toEqual(["delta", "gap"]);
});

test("a gap replaces the Position, also by a lower one", async () => {
    const { asked, events } = await received(
        [
            stream(frame("run", 90)),
            stream(frame("gap", null, { reason: "epoch", position: 4 })),
            stream(frame("run", 5)),
        ],
        3,
    );
    expect(asked).toEqual([null, "90", "4"]);
    expect(events.map((event) => event.type)).toEqual(["run", "gap", "run"]);
});

test("a silent connection is replaced", async () => {
    const silent: Answer = (_, response) => {
        response.writeHead(200).write(frame("run", 1));
    };
    const { asked } = await received([silent, stream(frame("run", 2))], 2, { silenceMs: 50 });
    expect(asked).toEqual([null, "1"]);
});

test("a stream whose workspace is closed again is retried", async () => {
    const refusals = [refusal(404, "workspace_not_found"), refusal(409, "workspace_closing")];
    const { connected, events } = await received([...refusals, stream(frame("run", 1))], 1);
    expect([connected, events.length]).toEqual([[false, false, true], 1]);
});

test("a stream whose workspace was removed ends", async () => {
    const open = () => Promise.reject(new RequestError("Workspace w not found.", 404, "workspace_not_found"));
    const { end, connected } = await received([], 1, { open });
    expect([end?.code, connected]).toEqual(["workspace_not_found", [false]]);
});

test("an error that a retry does not change ends the stream", async () => {
    const { end, asked } = await received([refusal(500, "store_damaged")], 1);
    expect([end?.message, asked.length]).toEqual(["It is store_damaged.", 1]);
    const broken = await received([stream("data: {\n\n")], 1);
    expect(broken.end?.code).toBe("bad_event");
});
