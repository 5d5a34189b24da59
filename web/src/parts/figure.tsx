/** A plot with its legend, its numbers as a table, and the same numbers as a CSV file. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { shownTheme } from "../state/theme";
import { csv, drawn, valueText, type Plot } from "../view/figures";

/** Rows of a table of numbers at first. Items. */
const ROWS_MAX = 200;

export function Figure({ plot }: { plot: Plot }) {
    const isTable = useSignal(false);
    return (
        <figure class="figure" data-plot={plot.id}>
            <figcaption>
                <h2>{plot.title}</h2>
                <span class="figure-tools">
                    <button
                        type="button"
                        class="button-quiet"
                        aria-pressed={isTable.value}
                        aria-label={`${plot.title} as a table`}
                        onClick={() => (isTable.value = !isTable.value)}
                    >
                        Table
                    </button>
                    <button
                        type="button"
                        class="button-quiet"
                        aria-label={`Download ${plot.title} as CSV`}
                        onClick={() => download(`kedge-${plot.id}.csv`, csv(plot))}
                    >
                        CSV
                    </button>
                </span>
            </figcaption>
            {isTable.value ? <Numbers plot={plot} /> : <Canvas plot={plot} />}
            <ul class="figure-legend">
                {plot.series.map((one) => (
                    <li key={one.name}>
                        <span class={`figure-key is-${one.style} is${one.colour}`} aria-hidden="true" />
                        {one.name}
                    </li>
                ))}
            </ul>
        </figure>
    );
}

function Canvas({ plot }: { plot: Plot }) {
    const element = useRef<HTMLDivElement>(null);
    const problem = useSignal("");
    const shown = shownTheme.value; // the colours of a canvas do not follow the theme
    useEffect(() => {
        let remove = () => {};
        let isOver = false;
        import("./bar_plot")
            .then(({ drawBars }) => {
                if (!isOver && element.current) remove = drawBars(element.current, drawn(plot));
            })
            .catch(() => (problem.value = "The plot cannot be loaded. Its table shows the numbers."));
        return () => {
            isOver = true;
            remove();
        };
    }, [plot, shown]);
    return (
        <div
            class="figure-plot"
            ref={element}
            role="img"
            aria-label={`${plot.title}: a bar chart. Its table has the numbers.`}
        >
            {problem.value && <p class="error-text">{problem.value}</p>}
        </div>
    );
}

function Numbers({ plot }: { plot: Plot }) {
    const rest = plot.labels.length - ROWS_MAX;
    return (
        <div class="figure-numbers" tabIndex={0} role="region" aria-label={`Numbers of ${plot.title}`}>
            <table class="figures-table">
                <thead>
                    <tr>
                        <th scope="col">{plot.by}</th>
                        {plot.series.map((one) => (
                            <th key={one.name} scope="col" class="is-number">
                                {one.name}
                            </th>
                        ))}
                    </tr>
                </thead>
                <tbody>
                    {plot.labels.slice(0, ROWS_MAX).map((label, index) => (
                        <tr key={label}>
                            <th scope="row">{label}</th>
                            {plot.series.map((one) => (
                                <td key={one.name} class="is-number" data-value={one.values[index] ?? ""}>
                                    {valueText(one.values[index] ?? null, plot.unit)}
                                </td>
                            ))}
                        </tr>
                    ))}
                </tbody>
            </table>
            {rest > 0 && <p class="quiet">{rest} more rows are in the CSV file.</p>}
        </div>
    );
}

function download(name: string, text: string): void {
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    URL.revokeObjectURL(url);
}
