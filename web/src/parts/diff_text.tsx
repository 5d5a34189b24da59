const KINDS: Record<string, string> = { "+": "added", "-": "removed", "@": "hunk" };

/** Lines of a unified diff, as they are: for approvals, where nothing may be left out. */
export function DiffText({ diff }: { diff: string }) {
    const lines = diff.replace(/\n$/, "").split("\n");
    return (
        <pre class="plain-diff">
            {lines.map((line, index) => (
                <span key={index} class={`plain-line ${kindOf(lines, index)}`}>
                    {`${line}\n`}
                </span>
            ))}
        </pre>
    );
}

function kindOf(lines: readonly string[], index: number): string {
    const isHead = (first: number) =>
        lines[first]?.startsWith("--- ") && lines[first + 1]?.startsWith("+++ ") && lines[first + 2]?.startsWith("@@ ");
    if (isHead(index) || isHead(index - 1)) return "hunk";
    return KINDS[lines[index]?.[0] ?? ""] ?? "";
}
