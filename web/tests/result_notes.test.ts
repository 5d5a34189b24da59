import { expect, test } from "vitest";
import { resultNotes } from "../src/view/result_notes";

test("a result has at most five diagnostics, and the messages of hooks", () => {
    const found = { path: "a.py", line: 2, severity: "error", message: "undefined\n  name", source: "pyflakes" };
    expect(resultNotes({ diagnostics: [found], hooks: ["The hook x failed."] })).toEqual([
        { kind: "error", text: "a.py:2: error: undefined name [pyflakes]" },
        { kind: "hook", text: "The hook x failed." },
    ]);
    const many = resultNotes({ diagnostics: Array.from({ length: 9 }, () => ({ ...found, severity: "warning" })) });
    expect(many.map((note) => note.kind)).toEqual(Array.from({ length: 5 }, () => "warning"));
    expect(many[4]?.text).toBe("5 more diagnostics");
    expect(resultNotes({ diagnostics: "x", hooks: [1, null] })).toEqual([]);
});
