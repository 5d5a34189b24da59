import { expect, test } from "vitest";
import type { RunBody } from "../src/api/types";
import { newId } from "../src/api/client";
import { FILES_BYTES_MAX, addFiles, base64, pastedText, typeOf } from "../src/state/attachments";
import { Draft } from "../src/state/drafts";
import { bestMatches, mention, mentioned, partialName } from "../src/state/mentions";
import { PromptHistory } from "../src/state/prompt_history";
import { MemoryStorage } from "./memory_storage";

test("an id is a UUID, as the server requires of a client", () => {
    expect(newId()).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect(newId()).not.toBe(newId());
});

test("a draft survives the page, and what was not sent comes before it", () => {
    const storage = new MemoryStorage();
    new Draft("s1", storage).set("half a thought");
    const draft = new Draft("s1", storage);
    expect(draft.text.value).toBe("half a thought");
    draft.putBack(["not sent", " "]);
    expect(new Draft("s1", storage).text.value).toBe("not sent\n\nhalf a thought");
    draft.set("");
    expect(storage.length).toBe(0);
});

test("an edit of a queued prompt keeps the draft, also over a reload", () => {
    const storage = new MemoryStorage();
    const draft = new Draft("s1", storage);
    draft.set("next idea");
    draft.edit({ run_id: "r1", prompt: "queued" } as RunBody);
    draft.set("queued, changed");
    draft.putBack(["stopped"]);
    expect(new Draft("s1", storage).text.value).toBe("stopped\n\nnext idea");
    expect(draft.endEdit()?.text).toBe("queued, changed");
    expect(draft.text.value).toBe("stopped\n\nnext idea");
});

test("old drafts are dropped, and a full or damaged storage changes nothing on the page", () => {
    const storage = new MemoryStorage(1000);
    for (let number = 0; number < 60; number++) new Draft(`s${number}`, storage).set("text");
    expect(storage.length).toBe(50);
    expect(new Draft("s59", storage).text.value).toBe("text");
    const draft = new Draft("long", storage);
    draft.set("x".repeat(2000));
    expect(draft.text.value).toHaveLength(2000);
    storage.setItem("kedge.draft.bad", "{");
    expect(new Draft("bad", storage).text.value).toBe("");
});

test("history steps to earlier prompts and back to the text being written", () => {
    const storage = new MemoryStorage();
    const history = new PromptHistory("w", storage);
    for (const text of ["one", "two", "two", " "]) history.add(text);
    expect(history.step(-1, "draft")).toBe("two");
    expect(history.step(-1, "two")).toBe("one");
    expect(history.step(-1, "one")).toBeNull();
    expect([history.step(1, "one"), history.step(1, "two"), history.step(1, "draft")]).toEqual(["two", "draft", null]);
    expect(new PromptHistory("w", storage).step(-1, "")).toBe("two");
});

test("the type of a file is that of its content", () => {
    const bytes = (text: string) => Uint8Array.from(text, (character) => character.charCodeAt(0));
    expect(typeOf(bytes("\x89PNG\r\n\x1a\n..."))).toBe("image/png");
    expect(typeOf(bytes("RIFF1234WEBPVP8"))).toBe("image/webp");
    expect(typeOf(new TextEncoder().encode("größer"))).toBe("text/plain");
    expect(typeOf(bytes("PK\x03\x04\x00"))).toBeNull();
    expect(typeOf(bytes("\xff\xfe"))).toBeNull();
    const large = new Uint8Array(100_001).fill(7);
    expect(base64(large)).toBe(Buffer.from(large).toString("base64"));
});

test("files that cannot be sent are refused in one sentence, the others are attached", async () => {
    const text = new File(["hello"], "a.txt");
    const archive = new File([new Uint8Array([0x50, 0x4b, 3, 4, 0])], "b.zip");
    const huge = new File([new Uint8Array(FILES_BYTES_MAX)], "c.txt");
    const { attachments, refusals } = await addFiles([text, archive, huge], []);
    expect(attachments.map(({ name, type }) => [name, type])).toEqual([["a.txt", "text/plain"]]);
    expect(refusals).toEqual([
        "b.zip was not attached: it is neither text, an image (PNG, JPEG, GIF, WebP) nor a PDF.",
        "c.txt was not attached: the files of a prompt may total 10.5 MiB. Name the file in the prompt instead.",
    ]);
    const many = Array.from({ length: 25 }, (_, number) => new File(["x"], `${number}.txt`));
    expect((await addFiles(many, attachments)).attachments).toHaveLength(20);
    expect(pastedText("x", [pastedText("y", [])]).name).toBe("pasted-2.txt");
});

test("names are completed at the start of a word", () => {
    expect(partialName("see @src/ap")).toEqual({ start: 4, kind: "mention", word: "src/ap" });
    expect(partialName('line\n@"with sp')).toEqual({ start: 5, kind: "mention", word: "with sp" });
    expect(partialName("mail me@example")).toBeNull();
    expect(partialName("/rev")).toEqual({ start: 0, kind: "command", word: "rev" });
    expect(partialName("/usr/bin")).toBeNull();
    expect(partialName("a /rev")).toBeNull();
    expect([mention("a.py"), mention("a b.py")]).toEqual(["@a.py", '@"a b.py"']);
});

test("only known names are attached, also with punctuation after them", () => {
    const known = new Set(["a.py", "b c.py"]);
    expect(mentioned('fix @a.py, @"b c.py" and @a.py; not @/etc/passwd or x@a.py', known)).toEqual(["a.py", "b c.py"]);
});

test("the best match comes first", () => {
    const names = ["docs/app.md", "src/app.py", "src/deep/wrapper.py", "a/p/p"];
    expect(bestMatches("app", names)).toEqual(["src/app.py", "docs/app.md", "src/deep/wrapper.py", "a/p/p"]);
    expect(bestMatches("zzz", names)).toEqual([]);
});
