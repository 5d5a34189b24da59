import { signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { diffPairs, diffRows, type DiffRow } from "./diff_rows";
import { useFold } from "./folds";
import { plural } from "./format";

/** A folded diff; and an unfolded one, since more take too long to lay out. Rows. */
const FOLDED_ROWS = 24;
const ROWS_MAX = 3_000;
const STORED = "kedge.diff";

/** Whether diffs are shown side by side: the user's choice for all of them. */
const isSplit = signal(globalThis.localStorage?.getItem(STORED) === "split");

/** Two columns of code are not readable on a phone. */
const phone = globalThis.matchMedia?.("(max-width: 760px)");
const isPhone = signal(phone?.matches ?? false);
phone?.addEventListener("change", ({ matches }) => (isPhone.value = matches));

function toggleSplit(): void {
    isSplit.value = !isSplit.value;
    localStorage.setItem(STORED, isSplit.value ? "split" : "unified");
}

/** A diff, unified or split. `foldKey` remembers whether it is unfolded. */
export function Diff({ diff, foldKey }: { diff: string; foldKey: string }) {
    const rows = useMemo(() => diffRows(diff), [diff]);
    const isInPairs = isSplit.value && !isPhone.value;
    const pairs = useMemo(() => (isInPairs ? diffPairs(rows) : null), [rows, isInPairs]);
    const [isOpen, toggle] = useFold(`${foldKey}:diff`, false);
    const count = (pairs ?? rows).length;
    // A note about a single hidden row would take as much room as the row.
    const shown = isOpen ? ROWS_MAX : count <= FOLDED_ROWS + 1 ? count : FOLDED_ROWS;
    return (
        <div class={`diff${pairs ? " diff-split" : ""}`}>
            {!isPhone.value && (
                <div class="diff-head">
                    <button type="button" class="text-button" onClick={toggleSplit}>
                        {pairs ? "Unified" : "Side by side"}
                    </button>
                </div>
            )}
            <div class="diff-scroll" tabIndex={0}>
                <table class="diff-table" aria-label="Changes">
                    {pairs && (
                        <colgroup>
                            <col class="diff-number" />
                            <col />
                            <col class="diff-number" />
                            <col />
                        </colgroup>
                    )}
                    <tbody>
                        {pairs
                            ? pairs.slice(0, shown).map(({ left, right }, index) =>
                                  left && (left.sign === "@" || left.sign === "\\") ? (
                                      <Remark key={index} row={left} columns={4} />
                                  ) : (
                                      <tr key={index}>
                                          <Side row={left} number={left?.old ?? 0} />
                                          <Side row={right} number={right?.new ?? 0} />
                                      </tr>
                                  ),
                              )
                            : rows.slice(0, shown).map((row, index) =>
                                  row.sign === "@" || row.sign === "\\" ? (
                                      <Remark key={index} row={row} columns={3} />
                                  ) : (
                                      <tr key={index} class={CLASSES[row.sign]}>
                                          <td class="diff-number">{row.old || ""}</td>
                                          <td class="diff-number">{row.new || ""}</td>
                                          <td class="diff-code" data-sign={row.sign}>
                                              {row.text || "\n"}
                                          </td>
                                      </tr>
                                  ),
                              )}
                    </tbody>
                </table>
            </div>
            {count > shown && !isOpen && (
                <button type="button" class="text-button more" onClick={toggle}>
                    {plural(count - shown, "more line")}
                </button>
            )}
            {isOpen && count > FOLDED_ROWS + 1 && (
                <button type="button" class="text-button more" onClick={toggle}>
                    Show less{count > ROWS_MAX && ` (${plural(count - ROWS_MAX, "line")} not shown)`}
                </button>
            )}
        </div>
    );
}

const CLASSES: Record<string, string> = { "+": "diff-added", "-": "diff-removed", " ": "" };

function Remark({ row, columns }: { row: DiffRow; columns: number }) {
    return (
        <tr class="diff-remark">
            <td colSpan={columns}>{row.text}</td>
        </tr>
    );
}

function Side({ row, number }: { row: DiffRow | null; number: number }) {
    const name = row ? (CLASSES[row.sign] ?? "") : "diff-none";
    return (
        <>
            <td class={`diff-number ${name}`}>{number || ""}</td>
            <td class={`diff-code ${name}`} data-sign={row?.sign ?? ""}>
                {row ? row.text || "\n" : ""}
            </td>
        </>
    );
}
