/** What a screen reader says that has no visible counterpart of its own. */

import { signal } from "@preact/signals";

export const announcement = signal("");

export function announce(text: string): void {
    // The same text twice in a row is read twice only if it differs.
    announcement.value = announcement.peek() === text ? `${text}\u00a0` : text;
}
