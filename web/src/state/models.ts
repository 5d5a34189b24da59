/** The models of workspaces, with the sizes of their contexts. */

import { signal } from "@preact/signals";
import { call } from "../api/call";
import type { ModelBody } from "../api/types";

const known = signal<ReadonlyMap<string, ModelBody[]>>(new Map());

export function modelsOf(workspaceId: string): ModelBody[] {
    return known.value.get(workspaceId) ?? [];
}

/** Throws a RequestError. */
export async function loadModels(workspaceId: string): Promise<void> {
    const models = await call("get", "/v1/workspaces/{id}/models", { path: { id: workspaceId } });
    known.value = new Map(known.value).set(workspaceId, models);
}

/** Return names and texts of the models that contain all typed words, the configured default first. */
export function modelOffers(
    models: readonly ModelBody[],
    current: string,
    typed: string,
): [name: string, text: string][] {
    const standard = models.find((model) => model.is_default)?.model ?? "";
    const texts = new Map([["", `(configured default) ${standard}`.trim()]]);
    if (current) texts.set(current, current);
    for (const model of models) {
        const note = model.description || (model.is_small && !model.is_default ? "for titles" : "");
        texts.set(model.model, `${model.model}  ${note}`.trim());
    }
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = [...texts].filter(([, text]) => words.every((word) => text.toLowerCase().includes(word)));
    const name = typed.trim();
    if (matches.length === 0 && name.replace(/^[/ ]+|[/ ]+$/g, "").includes("/")) {
        return [[name, `use ${name} (not in the list)`]];
    }
    return matches;
}
