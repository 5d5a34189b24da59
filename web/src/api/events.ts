/**
 * The event stream of a workspace: it survives lost connections and restarts of the server.
 *
 * - It resumes at the Position of the last durable event and drops older ones: each is passed on once.
 * - Deltas have no Position. After a reconnect the server first sends the current text of streaming messages.
 * - Where the server cannot resume, or no Position is known yet, the reader receives a `gap` and must reread the state.
 */

import { FrameParser, type Frame } from "./frames";
import { RequestError, errorOf } from "./http";

/** One envelope of the stream. `position` is null for what is not durable: Deltas, snapshots and gaps. */
export interface StreamEvent {
    type: string;
    change: "created" | "updated" | "deleted";
    payload: Record<string, unknown>;
    position: number | null;
}

export interface StreamOptions {
    /**
     * Request the stream: `send` of http.ts, with the parameters of the page. It opens a closed workspace. Throws
     * `workspace_not_found` if the server has no such workspace.
     */
    open(after: number | null, signal: AbortSignal): Promise<Response>;
    onEvents(events: StreamEvent[]): void;
    onConnected(connected: boolean): void;
    /** The stream has ended: an error that a retry does not change. */
    onEnd(error: RequestError): void;
    after?: number | null;
    /** Replaced by tests. */
    silenceMs?: number;
    random?: () => number;
}

/** First and longest delay between two attempts. Milliseconds. */
const RETRY_MS_MIN = 50;
const RETRY_MS_MAX = 5_000;
/** The loss of a connection that lasted this long restarts the backoff. Milliseconds. */
const STEADY_MS = 5_000;
/** The server sends a heartbeat every 15 s; after three missed ones the connection is dead. Milliseconds. */
const SILENCE_MS_MAX = 45_000;

export class EventStream {
    /** The last durable Position passed on. */
    position: number | null;
    private connects = 0;
    private delayMs = RETRY_MS_MIN;
    private readonly ended = new AbortController();
    private connection: AbortController | null = null;
    private endWait: () => void = () => {};
    private isReconnecting = false;

    constructor(private readonly options: StreamOptions) {
        this.position = options.after ?? null;
    }

    /** Read until `close`, or until an error that a retry does not change. */
    async run(): Promise<void> {
        while (!this.ended.signal.aborted) {
            try {
                await this.readConnection();
            } catch (error) {
                if (this.ended.signal.aborted) return;
                if (!(error instanceof RequestError)) throw error;
                if (!isTemporary(error)) {
                    this.ended.abort();
                    this.options.onConnected(false);
                    this.options.onEnd(error);
                    return;
                }
            }
            if (this.ended.signal.aborted) return;
            if (this.isReconnecting) {
                this.isReconnecting = false;
                continue;
            }
            this.options.onConnected(false);
            await this.backOff();
        }
    }

    close(): void {
        this.ended.abort();
        this.connection?.abort();
        this.endWait();
    }

    /** Retry now: the network is back, or the page is visible again. */
    wake(): void {
        this.delayMs = RETRY_MS_MIN;
        this.endWait();
    }

    /** Connect again: the server then first sends each streaming message in full, so that Deltas apply to it. */
    reconnect(): void {
        this.isReconnecting = true;
        this.connection?.abort();
    }

    private async readConnection(): Promise<void> {
        const connection = (this.connection = new AbortController());
        const began = Date.now();
        let silence: ReturnType<typeof setTimeout> | undefined;
        const expectBytes = () => {
            clearTimeout(silence);
            silence = setTimeout(() => connection.abort(), this.options.silenceMs ?? SILENCE_MS_MAX);
        };
        try {
            expectBytes();
            const response = await orLost(this.options.open(this.position, connection.signal));
            if (!response.ok) {
                const error = errorOf(response.status, await orLost(response.text()));
                if (error.code === "workspace_not_found") return; // closed again since `open` opened it
                throw error;
            }
            const mayHaveMissed = this.connects > 0 && this.position === null;
            this.connects++;
            this.options.onConnected(true);
            if (mayHaveMissed) this.options.onEvents([gap()]);
            await this.readBody(response, expectBytes);
        } finally {
            clearTimeout(silence);
            connection.abort();
            if (Date.now() - began >= STEADY_MS) this.delayMs = RETRY_MS_MIN;
        }
    }

    private async readBody(response: Response, expectBytes: () => void): Promise<void> {
        const reader = response.body?.getReader();
        if (!reader) return;
        const decoder = new TextDecoder();
        const parser = new FrameParser();
        for (;;) {
            const { value, done } = await orLost(reader.read());
            if (done || this.ended.signal.aborted) return;
            expectBytes();
            const events: StreamEvent[] = [];
            for (const frame of parser.push(decoder.decode(value, { stream: true }))) {
                const event = this.eventOf(frame);
                if (event) events.push(event);
            }
            if (events.length > 0) this.options.onEvents(events);
        }
    }

    private eventOf(frame: Frame): StreamEvent | null {
        const position = frame.id !== null && /^\d+$/.test(frame.id) ? Number(frame.id) : null;
        if (frame.data === "") {
            // An id alone: the Position at which reading began.
            this.position = position ?? this.position;
            return null;
        }
        const envelope = decode(frame.data);
        const { type: change, payload } = envelope.payload;
        if (envelope.type === "gap") {
            // Earlier Positions are void: they may belong to another log, and be higher.
            this.position = typeof payload["position"] === "number" ? payload["position"] : null;
        } else if (position !== null) {
            if (this.position !== null && position <= this.position) return null;
            this.position = position;
            this.delayMs = RETRY_MS_MIN; // only for durable events: a connection may break right after its first frames
        }
        return { type: envelope.type, change, payload, position };
    }

    private backOff(): Promise<void> {
        // Jitter: many pages do not reconnect at the same moment.
        const delay = this.delayMs * (0.5 + 0.5 * (this.options.random ?? Math.random)());
        this.delayMs = Math.min(2 * this.delayMs, RETRY_MS_MAX);
        return new Promise((resolve) => {
            const timer = setTimeout(resolve, delay);
            this.endWait = () => {
                clearTimeout(timer);
                resolve();
            };
        });
    }
}

interface Envelope {
    type: string;
    payload: { type: StreamEvent["change"]; payload: StreamEvent["payload"] };
}

function decode(data: string): Envelope {
    try {
        return JSON.parse(data) as Envelope;
    } catch {
        throw new RequestError("Cannot decode an event. Reload the page: the server may be newer.", 200, "bad_event");
    }
}

/** Report any failure of the network, or the abort of a silent connection, as a lost connection. */
async function orLost<T>(step: Promise<T>): Promise<T> {
    try {
        return await step;
    } catch (error) {
        throw error instanceof RequestError ? error : new RequestError("The connection was lost.", 0, "");
    }
}

function gap(): StreamEvent {
    return { type: "gap", change: "created", payload: { reason: "unknown", position: 0 }, position: null };
}

function isTemporary(error: RequestError): boolean {
    return error.isTransient || error.code === "workspace_closing";
}
