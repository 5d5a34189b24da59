import { expect, test } from "vitest";
import type { PermissionRequest, QuestionBody } from "../src/api/types";
import { approvalFields, approvalTitle, closedText, responsesTo } from "../src/view/ask_text";
import { jobState, runtime } from "../src/view/status_text";
import { visible, visibleDiff, visibleLine } from "../src/view/visible_text";

test("nothing is hidden in the text of an approval", () => {
    expect(visible("rm \u202ecod.\u202c x\u200by")).toBe("rm \\u{202e}cod.\\u{202c} x\\u{200b}y");
    expect(visible("a\u00a0b\u2800c\ufeff")).toBe("a\\u{a0}b\\u{2800}c\\u{feff}");
    expect(visible("cd \\ \nls\t\n")).toBe("cd \\\\u{20}\nls\\u{9}\n");
    expect(visible("e\u0301 and e\u0301\u0301\u0301\u0301")).toBe("e\u0301 and e\u0301\u0301\u0301\\u{301}");
    expect(visible("/\u0338")).toBe("/\\u{338}");
    expect(visible("größer 日本")).toBe("größer 日本");
    expect(visibleDiff("+ x \n-\ty\n ")).toBe("+ x\\u{20}\n-\ty\n ");
    expect(visibleLine(" a \n b ", 10)).toBe("a b");
});

const ASK = {
    id: "a1",
    tool_name: "shell",
    action: "execute",
    description: "$ ls",
    path: "/w",
    params: { command: "ls", cwd: "/w", timeout_s: 5, env: {}, note: "" },
} as unknown as PermissionRequest;

test("an approval shows its command, its directory and its other parameters", () => {
    expect(approvalTitle(ASK)).toBe("shell needs your approval");
    expect(approvalFields(ASK).map(({ label, text }) => [label, text])).toEqual([
        ["$", "ls"],
        ["in", "/w"],
        ["timeout_s", "5"],
    ]);
});

test.each([
    ["Count: $ echo $ 5 && ls", "echo $ 5 && ls", ": Count"],
    ["Costs $ 5: $ ls -l", "ls  -l\n", ": Costs $ 5"],
    ["List: $ ls aaa…", "ls aaaaaa", ": List"],
    ["$ ls aaa…", "ls aaaaaa", ""],
    ["List: $ ls other", "ls", ": List: $ ls other"],
    ["Create a.txt", undefined, ": Create a.txt"],
])("the title of an approval does not repeat its command: %s", (description, command, title) => {
    const ask = { ...ASK, description, params: { command } } as PermissionRequest;
    expect(approvalTitle(ask)).toBe(`shell needs your approval${title}`);
});

test("an approval that was closed elsewhere says by whom", () => {
    expect(closedText(ASK, { answer: "deny", by: "abcdef", author: "" })).toBe(
        "shell: denied by another client (abcd)",
    );
    expect(closedText(ASK, { answer: "allow", by: "rule", author: "" })).toBe("shell: allowed by a rule or the mode");
    expect(closedText(ASK, { answer: "allow", by: "abcdef", author: "ann" })).toBe("shell: allowed by ann");
    expect(closedText(ASK, { answer: "", by: "", author: "" })).toBe("shell: withdrawn, because the run was stopped");
});

test("a batch without any answer is declined", () => {
    const questions = [
        { request_id: "q1", options: [{ id: "o1" }, { id: "o2" }] },
        { request_id: "q2", options: [] },
    ] as unknown as QuestionBody[];
    const none = { selected: new Set<string>(), text: " " };
    expect(responsesTo(questions, [none, none])).toBeNull();
    expect(responsesTo(questions, [{ selected: new Set(["o2", "gone"]), text: "" }, none])).toEqual([
        { request_id: "q1", selected_ids: ["o2"], fill_in_text: "" },
        { request_id: "q2", selected_ids: [], fill_in_text: "" },
    ]);
});

test("a kept command has the words of the terminal", () => {
    const job = { id: "j1", command: "x", run_id: "r", started_at: 0, ended_at: 90_000, exit_code: -9 };
    expect(jobState({ ...job, state: "exited" })).toBe("signal 9");
    expect(jobState({ ...job, state: "server_stopped" })).toBe("ended with the server");
    expect(runtime({ ...job, state: "exited" }, 0)).toBe("1m");
    expect(runtime({ ...job, state: "running" }, 7_300_000)).toBe("2h");
});
