/** The timeline of a session in view: a page from the server, then the events of the workspace's stream. */

import { signal } from "@preact/signals";
import { call } from "../api/call";
import type { StreamEvent } from "../api/events";
import { RequestError } from "../api/http";
import type { LaneBody } from "../api/types";
import { LaneModel } from "../view/lane_model";
import { FrameTask } from "./frames";
import { retryWhileAway } from "./retry";
import type { Workspace } from "./workspace";

/** Runs of one request. Items. */
const PAGE_RUNS = 100;
/** Runs that are loaded at most: a picture of more is not readable. Items. */
export const RUNS_MAX = 2_000;

export class LaneState {
    readonly model: LaneModel;
    /** Increases once per frame in which the model has changed. */
    readonly version = signal(0);
    readonly isLoaded = signal(false);
    readonly isLoadingEarlier = signal(false);
    /** One line: why the timeline cannot be shown. */
    readonly error = signal("");
    /** Events that arrive while a page is read; null: none is. */
    private held: StreamEvent[] | null = null;
    private isClosed = false;
    private readonly stops: (() => void)[];
    private readonly frame = new FrameTask(() => {
        if (!this.isClosed) this.version.value++;
    });

    constructor(
        private readonly workspace: Workspace,
        readonly sessionId: string,
    ) {
        this.model = new LaneModel(sessionId);
        const recover = () => {
            if (this.error.value && !this.held) void this.load();
        };
        this.stops = [workspace.listen((events) => this.apply(events)), workspace.connects.subscribe(recover)];
        void this.load();
    }

    close(): void {
        this.isClosed = true;
        for (const stop of this.stops) stop();
    }

    get mayLoadEarlier(): boolean {
        return this.model.nextBefore !== null && this.model.ordered().length < RUNS_MAX;
    }

    async loadEarlier(): Promise<void> {
        if (!this.mayLoadEarlier || this.isLoadingEarlier.value) return;
        this.isLoadingEarlier.value = true;
        this.error.value = "";
        try {
            this.model.loadEarlier(await this.read(this.model.nextBefore));
        } catch (error) {
            this.fail(error);
        }
        this.isLoadingEarlier.value = false;
        this.frame.request();
    }

    private apply(events: StreamEvent[]): void {
        if (this.held) {
            this.held.push(...events.filter(({ type }) => type !== "delta"));
            return;
        }
        const before = this.model.version;
        for (const event of events) {
            if (!this.model.apply(event)) {
                void this.load();
                return;
            }
        }
        if (this.model.version !== before) this.frame.request();
    }

    private async load(): Promise<void> {
        this.held = [];
        try {
            const page = await this.read(null);
            const events: StreamEvent[] = this.held ?? [];
            this.held = null;
            if (this.isClosed) return;
            this.model.load(page);
            this.error.value = "";
            this.isLoaded.value = true;
            this.frame.request();
            this.apply(events.filter(({ type, position }) => type !== "rewind" || (position ?? 0) > page.position));
        } catch (error) {
            this.held = null;
            this.fail(error);
        }
    }

    private read(before: number | null): Promise<LaneBody> {
        const path = { id: this.workspace.id, sid: this.sessionId };
        const query = { limit: PAGE_RUNS, ...(before === null ? {} : { before }) };
        const get = () => call("get", "/v1/workspaces/{id}/sessions/{sid}/lane", { path, query });
        return retryWhileAway(get, () => this.isClosed);
    }

    private fail(error: unknown): void {
        if (this.isClosed) return;
        this.error.value = error instanceof RequestError ? error.message : `Unexpected error: ${String(error)}`;
    }
}
