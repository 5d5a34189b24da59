/** Files that are sent with a prompt. The limits and types are those of `client/attachment_files.py`. */

import type { AttachmentBody } from "../api/types";

/** Attachments of one prompt. Items. */
export const ATTACHMENTS_MAX = 20;
/** All files of one prompt: as base64, they fit into the largest body together with the largest prompt. Bytes. */
export const FILES_BYTES_MAX = ((16 - 2) * 1024 * 1024 * 3) / 4;
/** A longer paste becomes an attached text: it would make the prompt slow, and is not stored as a draft. Characters. */
export const PASTE_CHARS_MAX = 100_000;

const UNSUPPORTED = "it is neither text, an image (PNG, JPEG, GIF, WebP) nor a PDF.";

export interface Attachment {
    name: string;
    type: string;
    bytes: Uint8Array<ArrayBuffer>;
}

const SIGNATURES: [signature: string, type: string][] = [
    ["\x89PNG\r\n\x1a\n", "image/png"],
    ["\xff\xd8\xff", "image/jpeg"],
    ["GIF87a", "image/gif"],
    ["GIF89a", "image/gif"],
    ["%PDF-", "application/pdf"],
];

/** Return the type of a file that models accept, from its content; null for others. */
export function typeOf(bytes: Uint8Array): string | null {
    const head = String.fromCharCode(...bytes.subarray(0, 12));
    for (const [signature, type] of SIGNATURES) if (head.startsWith(signature)) return type;
    if (head.startsWith("RIFF") && head.slice(8) === "WEBP") return "image/webp";
    if (bytes.includes(0)) return null;
    try {
        new TextDecoder("utf-8", { fatal: true }).decode(bytes);
        return "text/plain";
    } catch {
        return null;
    }
}

/** Return why a file cannot be added to the others; empty if it can. `instead`: what to do if it is too large. */
export function refusal(
    name: string,
    size: number,
    others: readonly Attachment[],
    instead = "Name the file in the prompt instead.",
): string {
    const shown = name.slice(0, 100);
    if (others.length >= ATTACHMENTS_MAX)
        return `${shown} was not attached: a prompt has at most ${ATTACHMENTS_MAX} files.`;
    const total = others.reduce((sum, other) => sum + other.bytes.length, size);
    if (total > FILES_BYTES_MAX) {
        const limit = (FILES_BYTES_MAX / 1024 / 1024).toFixed(1);
        return `${shown} was not attached: the files of a prompt may total ${limit} MiB. ${instead}`;
    }
    return "";
}

/** Add files to the others. The size is checked before a file is read. Returns the sentences of refusals as well. */
export async function addFiles(
    files: readonly File[],
    others: readonly Attachment[],
): Promise<{ attachments: Attachment[]; refusals: string[] }> {
    const attachments = [...others];
    const refusals: string[] = [];
    for (const file of files) {
        const name = file.name || "file";
        let problem = refusal(name, file.size, attachments);
        if (!problem) {
            try {
                const bytes = new Uint8Array(await file.arrayBuffer());
                const type = typeOf(bytes);
                if (type) attachments.push({ name, type, bytes });
                else problem = `${name.slice(0, 100)} was not attached: ${UNSUPPORTED}`;
            } catch {
                problem = `${name.slice(0, 100)} was not attached: the browser cannot read it. Is it a directory?`;
            }
        }
        if (problem) refusals.push(problem);
    }
    return { attachments, refusals };
}

/** Return a pasted text as an attachment, with a name that the others do not have. */
export function pastedText(text: string, others: readonly Attachment[]): Attachment {
    const names = new Set(others.map((other) => other.name));
    let number = 1;
    while (names.has(`pasted-${number}.txt`)) number++;
    return { name: `pasted-${number}.txt`, type: "text/plain", bytes: new TextEncoder().encode(text) };
}

export function attachmentBody(attachment: Attachment): AttachmentBody {
    // The model sees the path. The file of the user is not in the workspace, so it is the name.
    const { name, type, bytes } = attachment;
    return { file_path: name, file_name: name, mime_type: type, content: base64(bytes) };
}

/** Bytes converted at once: arguments of one call. A multiple of 3, so that pieces can be joined. */
const PIECE_BYTES = 3 * 8192;

export function base64(bytes: Uint8Array): string {
    const pieces: string[] = [];
    for (let start = 0; start < bytes.length; start += PIECE_BYTES) {
        pieces.push(btoa(String.fromCharCode(...bytes.subarray(start, start + PIECE_BYTES))));
    }
    return pieces.join("");
}

export function sizeText(bytes: number): string {
    if (bytes < 1024) return `${bytes} B`;
    return bytes < 1024 * 1024 ? `${(bytes / 1024).toFixed(0)} KiB` : `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}
