import { expect, test } from "vitest";
import { diffPairs, diffRows } from "../src/parts/diff_rows";
import { oneLine } from "../src/parts/format";
import { folded } from "../src/parts/tool_card";
import { parseRoute, sessionPath } from "../src/state/route";

test("a diff has the line numbers of both files, and pairs for two columns", () => {
    const rows = diffRows("--- a/x\n+++ b/x\n@@ -3,3 +3,4 @@\n a\n-b\n+c\n+--- d\n e\n");
    expect(rows.map((row) => [row.sign, row.text, row.old, row.new])).toEqual([
        ["@", "@@ -3,3 +3,4 @@", 0, 0],
        [" ", "a", 3, 3],
        ["-", "b", 4, 0],
        ["+", "c", 0, 4],
        ["+", "--- d", 0, 5],
        [" ", "e", 5, 6],
    ]);
    const sides = diffPairs(rows).map(({ left, right }) => [left?.text ?? null, right?.text ?? null]);
    expect(sides.slice(1)).toEqual([
        ["a", "a"],
        ["b", "c"],
        [null, "--- d"],
        ["e", "e"],
    ]);
});

test("paths and routes agree, and other paths have no screen", () => {
    expect(parseRoute(sessionPath("w 1", "s/2"))).toMatchObject({ workspaceId: "w 1", sessionId: "s/2" });
    expect(parseRoute("/w/a/s/b", "#m-7")).toMatchObject({ screen: "session", messageId: "m-7" });
    expect(parseRoute("/w/a/s/b/lane").screen).toBe("lane");
    for (const path of ["/w", "/w/a/b", "/w/a/s", "/w/a/s/b/c", "/other", "//"]) {
        expect(parseRoute(path).screen).toBe("unknown");
    }
});

test("folded output keeps its beginning or its end, and counts the rest", () => {
    const lines = Array.from({ length: 20 }, (_, index) => `line ${index}`).join("\n");
    expect(folded(lines, false, 2, false)).toEqual({ shown: "line 0\nline 1", hidden: 18 });
    expect(folded(lines, false, 2, true)).toEqual({ shown: "line 18\nline 19", hidden: 18 });
    expect(folded("a\nb\nc", false, 2, false).hidden).toBe(0);
    expect(folded(lines, true, 2, false)).toEqual({ shown: lines, hidden: 0 });
});

test("one line has no control characters and no marks that change its direction", () => {
    expect(oneLine("a\n\tb\u202ecod.exe\u0000")).toBe("a bcod.exe");
    expect(oneLine("x".repeat(300), 10)).toBe(`${"x".repeat(9)}…`);
});
