/** The dialog that chooses a model, with limits and prices, and its effort. */

import { useState } from "preact/hooks";
import type { ModelBody } from "../api/types";
import { setEffort, setModel } from "../state/actions";
import { loadModels, modelOffers, modelsOf } from "../state/models";
import type { Workspace } from "../state/workspace";
import { tokenCount } from "../view/number_text";
import { EFFORTS, type Effort } from "../view/status_text";
import { Dialog, closeDialog } from "./dialogs";
import { oneLine } from "./format";
import { useRead } from "./use_read";

const NO_PROVIDER =
    "No provider is configured. kedge/offline is built in and works without a network, but is not a language model.";

export function ModelDialog({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    const [typed, setTyped] = useState("");
    const [problem, setProblem] = useState("");
    const models = modelsOf(workspace.id);
    void workspace.outline.value;
    const session = workspace.view.session(sessionId);
    const current = session?.model ?? "";
    useRead(
        () => loadModels(workspace.id),
        () => setProblem(""),
        (error) => setProblem(`Cannot load the models: ${error.message}`),
        [workspace.connects.value],
    );
    const choose = (name: string) => {
        closeDialog();
        void setModel(workspace, sessionId, name);
    };
    const offers = modelOffers(models, current, typed);
    const byName = new Map(models.map((model) => [model.model, model]));
    return (
        <Dialog title="Model of this session" wide>
            <label class="field-label">
                Effort: how much the model thinks
                <select
                    class="field"
                    value={session?.effort}
                    onChange={(event) => {
                        const effort = event.currentTarget.value as Effort;
                        // The session decides which effort is shown, also if the change is refused.
                        event.currentTarget.value = session?.effort ?? "";
                        void setEffort(workspace, sessionId, effort);
                    }}
                >
                    {EFFORTS.map((effort) => (
                        <option key={effort} value={effort}>
                            {effort || "default"}
                        </option>
                    ))}
                </select>
            </label>
            <form
                onSubmit={(event) => {
                    event.preventDefault();
                    const first = offers[0];
                    if (first && typed.trim()) choose(first[0]);
                }}
            >
                <input
                    class="field"
                    type="search"
                    aria-label="Search models"
                    placeholder="search"
                    maxLength={200}
                    value={typed}
                    onInput={(event) => setTyped(event.currentTarget.value)}
                    autofocus
                />
            </form>
            {problem && (
                <p class="error-text" role="alert">
                    {problem}
                </p>
            )}
            {models.length > 0 && models.every((model) => model.description) && <p class="quiet">{NO_PROVIDER}</p>}
            <ul class="rows">
                {offers.map(([name, text]) => (
                    <li key={name}>
                        <button
                            type="button"
                            class={`row row-button${name === current ? " is-chosen" : ""}`}
                            aria-current={name === current}
                            onClick={() => choose(name)}
                        >
                            <span>{oneLine(text, 200)}</span>
                            <span class="quiet">{facts(byName.get(name))}</span>
                        </button>
                    </li>
                ))}
            </ul>
        </Dialog>
    );
}

function facts(model: ModelBody | undefined): string {
    if (!model || model.description) return "";
    const price = (one: number | undefined) =>
        one === undefined ? "-" : one >= 0.1 || one === 0 ? one.toFixed(2) : String(Number(one.toPrecision(3)));
    return [
        model.context_window === undefined ? "" : `${tokenCount(model.context_window)} context`,
        model.input_price === undefined ? "" : `$${price(model.input_price)} in, $${price(model.output_price)} out`,
        model.images ? "images" : "",
    ]
        .filter(Boolean)
        .join(" · ");
}
