/** Questions of the model. All questions of a batch are answered together. A plan is accepted here, too. */

import { useState } from "preact/hooks";
import { RequestError } from "../api/http";
import type { QuestionBatch, QuestionBody } from "../api/types";
import { answerQuestions } from "../state/actions";
import { canAct } from "../state/me";
import { notify } from "../state/notices";
import type { Workspace } from "../state/workspace";
import { asksInOrder, isFor, isQuestion, responsesTo, type Given } from "../view/ask_text";
import { visible, visibleLine } from "../view/visible_text";
import { useSettled, useShown } from "./approval";

/** Length of an answer, as the server limits it. Characters. */
const ANSWER_CHARS_MAX = 10_000;

export function Questions({ workspace, sessionId }: { workspace: Workspace; sessionId: string }) {
    void workspace.outline.value;
    const own = asksInOrder(workspace.view, sessionId).filter((ask) => isFor(workspace.view, ask, sessionId));
    const shown = useShown(own);
    if (!shown || !isQuestion(shown)) return null;
    const origin = own.length > 1 ? ` · 1 of ${own.length}` : "";
    const agent = shown.session_id === sessionId ? "" : " · an agent of this session";
    return <Batch key={shown.id} workspace={workspace} batch={shown} origin={origin + agent} />;
}

function Batch({ workspace, batch, origin }: { workspace: Workspace; batch: QuestionBatch; origin: string }) {
    const [given, setGiven] = useState<Given[]>(batch.questions.map(() => ({ selected: new Set(), text: "" })));
    const [isSent, setSent] = useState(false);
    const isSettled = useSettled();
    const responses = responsesTo(batch.questions, given);
    const mayAct = canAct();

    const send = async (isDeclined: boolean) => {
        setSent(true);
        try {
            await answerQuestions(workspace, batch.id, isDeclined ? null : responses);
        } catch (error) {
            setSent(false);
            if (!(error instanceof RequestError)) throw error;
            notify(error.message, "error");
        }
    };

    return (
        <form
            class="ask questions"
            aria-label="Question"
            data-ask={batch.id}
            onSubmit={(event) => {
                event.preventDefault();
                if (responses && isSettled && !isSent) void send(false);
            }}
        >
            <h2 class="ask-title">
                <span class="ask-kind">
                    {batch.questions.length > 1 ? `${batch.questions.length} questions` : "Question"}
                    {origin}
                </span>
            </h2>
            <div class="ask-text">
                {batch.questions.map((question, index) => (
                    <Question
                        key={question.request_id}
                        question={question}
                        given={given[index] ?? { selected: new Set(), text: "" }}
                        isOff={isSent || !mayAct}
                        onGive={(one) => setGiven(given.with(index, one))}
                    />
                ))}
            </div>
            {mayAct && (
                <div class="ask-keys" aria-busy={isSent}>
                    <button type="submit" class="button button-main" disabled={!responses || !isSettled || isSent}>
                        Answer
                    </button>
                    <button
                        type="button"
                        class="button"
                        disabled={!isSettled || isSent}
                        onClick={() => void send(true)}
                    >
                        Decline to answer
                    </button>
                    {isSent && <span class="quiet">sending your answer …</span>}
                </div>
            )}
        </form>
    );
}

function Question(props: { question: QuestionBody; given: Given; isOff: boolean; onGive: (given: Given) => void }) {
    const { question, given, isOff, onGive } = props;
    const choose = (id: string) => {
        const selected = new Set(question.multiple ? given.selected : []);
        if (!selected.delete(id)) selected.add(id);
        onGive({ selected, text: question.multiple ? given.text : "" });
    };
    const write = (text: string) => onGive({ selected: question.multiple ? given.selected : new Set(), text });
    return (
        <fieldset class="choices" disabled={isOff}>
            <legend class="question-text">{visible(question.question, "\n\t", false)}</legend>
            {question.options.map((option) => (
                <label key={option.id} class="choice">
                    <input
                        type={question.multiple ? "checkbox" : "radio"}
                        name={question.request_id}
                        checked={given.selected.has(option.id)}
                        onChange={() => choose(option.id)}
                    />
                    <span>
                        <strong>{visibleLine(option.label)}</strong>
                        {option.description && <span class="quiet"> {visibleLine(option.description)}</span>}
                    </span>
                </label>
            ))}
            <input
                class="field"
                aria-label={question.options.length > 0 ? "Another answer" : "Your answer"}
                placeholder={question.options.length > 0 ? "type another answer" : "your answer"}
                maxLength={ANSWER_CHARS_MAX}
                value={given.text}
                onInput={(event) => write(event.currentTarget.value)}
            />
        </fieldset>
    );
}
