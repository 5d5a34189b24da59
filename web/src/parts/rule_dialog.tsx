/** The dialog that chooses or edits the rules that an approval stores. The server checks them; a refusal is shown. */

import { useState } from "preact/hooks";
import { RequestError } from "../api/http";
import type { PermissionRequest } from "../api/types";
import type { Answer } from "../state/actions";
import { hasOneSession } from "../state/me";
import { approvalFields } from "../view/ask_text";
import { visible } from "../view/visible_text";
import { Dialog, closeDialog } from "./dialogs";

const SCOPES = [
    ["allow_session", "this session"],
    ["allow_always", "always"],
] as const;

export function RuleDialog(props: {
    ask: PermissionRequest;
    onAllow: (action: Answer, rules: string[]) => Promise<void>;
}) {
    const { ask } = props;
    /** The text of each offer, with the changes of the user. At first the widest offer is shown. */
    const [texts, setTexts] = useState(ask.offers.map((offer) => offer.join("\n")));
    const [index, setIndex] = useState(ask.offers.length - 1);
    const [scope, setScope] = useState<Answer>("allow_session");
    const [problem, setProblem] = useState("");
    const [isSending, setSending] = useState(false);
    const scopes = SCOPES.filter(([action]) => action !== "allow_always" || !hasOneSession());

    const allow = async (event: Event) => {
        event.preventDefault();
        const lines = (texts[index] ?? "").split("\n").map((line) => line.trim());
        const rules = lines.filter(Boolean);
        if (rules.length === 0) {
            setProblem("Write a rule, or choose an offered one.");
            return;
        }
        setSending(true);
        setProblem("");
        try {
            await props.onAllow(scope, rules);
            closeDialog();
        } catch (error) {
            if (!(error instanceof RequestError)) throw error;
            setProblem(error.message);
            setSending(false);
        }
    };

    return (
        <Dialog title="Allow with a rule" wide>
            <form onSubmit={(event) => void allow(event)}>
                <div class="ask-text">
                    {approvalFields(ask).map(({ kind, label, text }) => (
                        <div key={label} class={`ask-field ask-${kind}`}>
                            <span class="ask-label">{label}</span>
                            <pre>{text}</pre>
                        </div>
                    ))}
                </div>
                <fieldset class="choices">
                    <legend>Offered rules</legend>
                    {ask.offers.map((offer, number) => (
                        <label key={number} class="choice">
                            <input
                                type="radio"
                                name="offer"
                                checked={number === index}
                                onChange={() => setIndex(number)}
                            />
                            <code>{offer.map((rule) => visible(rule, "")).join(", ")}</code>
                        </label>
                    ))}
                </fieldset>
                <label class="field-label">
                    Rule to store; you can edit it. One per line.
                    <textarea
                        class="field field-code"
                        rows={3}
                        spellcheck={false}
                        value={texts[index] ?? ""}
                        onInput={(event) => setTexts(texts.with(index, event.currentTarget.value))}
                    />
                </label>
                <fieldset class="choices choices-row">
                    <legend>Allow</legend>
                    {scopes.map(([action, text]) => (
                        <label key={action} class="choice">
                            <input
                                type="radio"
                                name="scope"
                                checked={scope === action}
                                onChange={() => setScope(action)}
                            />
                            {text}
                        </label>
                    ))}
                </fieldset>
                {problem && (
                    <p class="error-text" role="alert">
                        {problem}
                    </p>
                )}
                <div class="button-row">
                    <button type="button" class="button" onClick={closeDialog}>
                        Back
                    </button>
                    <button type="submit" class="button button-main" disabled={isSending}>
                        Allow
                    </button>
                </div>
            </form>
        </Dialog>
    );
}
