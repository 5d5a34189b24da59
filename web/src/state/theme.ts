import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const STORED = "kedge.theme";

/** The theme that the user chose. */
export const theme = signal<Theme>(stored());

function stored(): Theme {
    const value = globalThis.localStorage?.getItem(STORED);
    return value === "light" || value === "dark" ? value : "system";
}

/** The theme in effect. */
export const shownTheme = signal<"light" | "dark">("light");

/** Keep `data-theme` of the document on the theme in effect. */
export function followTheme(): void {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const dark = signal(system.matches);
    system.addEventListener("change", () => (dark.value = system.matches));
    effect(() => {
        const chosen = theme.value;
        if (chosen === "system") localStorage.removeItem(STORED);
        else localStorage.setItem(STORED, chosen);
        const shown = chosen === "system" ? (dark.value ? "dark" : "light") : chosen;
        document.documentElement.dataset.theme = shownTheme.value = shown;
    });
}
