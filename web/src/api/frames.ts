/** Server-sent events: text in pieces of any size to frames. */

import { RequestError } from "./http";

/** One frame. `id` is null if the frame has none; `data` is empty if it has only an id. */
export interface Frame {
    id: string | null;
    data: string;
}

/** A frame is at most one message; see `EVENT_BYTES_MAX` of the Python client. Characters. */
export const FRAME_CHARS_MAX = 200_000_000;

export class FrameParser {
    /** The pieces of the line that has not ended. Joined once, so that a frame of n pieces costs n. */
    private line: string[] = [];
    private chars = 0;
    private id: string | null = null;
    private data: string[] = [];

    /** Return the frames that this piece completes. */
    push(piece: string): Frame[] {
        const frames: Frame[] = [];
        let start = 0;
        for (let end = piece.indexOf("\n"); end >= 0; end = piece.indexOf("\n", start)) {
            this.line.push(piece.slice(start, end));
            const line = this.line.length === 1 ? (this.line[0] ?? "") : this.line.join("");
            this.line = [];
            start = end + 1;
            const frame = this.endLine(line.endsWith("\r") ? line.slice(0, -1) : line);
            if (frame) frames.push(frame);
        }
        if (start < piece.length) {
            this.line.push(piece.slice(start));
            this.chars += piece.length - start;
            if (this.chars > FRAME_CHARS_MAX) throw new RequestError("An event is too large.", 200, "too_large");
        }
        return frames;
    }

    private endLine(line: string): Frame | null {
        if (line !== "") {
            const colon = line.indexOf(":");
            const name = colon < 0 ? line : line.slice(0, colon);
            const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
            if (name === "id") this.id = value;
            else if (name === "data") this.data.push(value);
            return null; // a comment has an empty name
        }
        const frame = { id: this.id, data: this.data.join("\n") };
        this.id = null;
        this.data = [];
        this.chars = 0;
        return frame.id === null && frame.data === "" ? null : frame;
    }
}
