import type { Conversation } from "./conversation";

/** Return the prompts of a conversation: the messages to which a session can be rewound. As `wire/brief.py`. */
export function prompts(conversation: Conversation | undefined): { messageId: string; text: string }[] {
    const found: { messageId: string; text: string }[] = [];
    for (const { body } of conversation?.ordered() ?? []) {
        if (body.role !== "user" || !body.parts.some(({ type }) => type === "text" || type === "file")) continue;
        const texts = body.parts.filter(({ type }) => type === "text").map(({ data }) => String(data["text"] ?? ""));
        found.push({ messageId: body.id, text: texts.join("") });
    }
    return found;
}
