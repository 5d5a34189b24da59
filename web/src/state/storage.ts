/** Storage of the browser. It may be full, disabled or changed by hand: what cannot be stored or read is left out. */

export function readStored<T>(storage: Storage, name: string, isValid: (value: unknown) => value is T): T | null {
    try {
        const value: unknown = JSON.parse(storage.getItem(name) ?? "null");
        return isValid(value) ? value : null;
    } catch {
        return null;
    }
}

/** Store a value; null removes it. Returns whether it is stored. */
export function writeStored(storage: Storage, name: string, value: unknown): boolean {
    try {
        if (value === null) storage.removeItem(name);
        else storage.setItem(name, JSON.stringify(value));
        return true;
    } catch {
        return false;
    }
}

/** The names of what the user has typed begin with these. It is removed with the access of the browser. */
export const DRAFTS = "kedge.draft.";
export const HISTORY = "kedge.history.";
export const OUTBOX = "kedge.outbox";
const TYPED = [DRAFTS, HISTORY, OUTBOX];

export function forgetTyped(storages: readonly Storage[]): void {
    for (const storage of storages) {
        const names = Array.from({ length: storage.length }, (_, index) => storage.key(index) ?? "");
        for (const name of names) if (TYPED.some((start) => name.startsWith(start))) storage.removeItem(name);
    }
}

export function isText(value: unknown): value is string {
    return typeof value === "string";
}

export function isTexts(value: unknown): value is string[] {
    return Array.isArray(value) && value.every(isText);
}
