import type { ComponentChildren } from "preact";
import { theme, type Theme } from "../state/theme";

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const MARKS: Record<Theme, string> = { system: "◐", light: "○", dark: "●" };

/** The line above a screen: the button of the drawer, a title, and the controls of the screen. */
export function Header(props: {
    title: ComponentChildren;
    detail?: ComponentChildren;
    children?: ComponentChildren;
    onMenu: () => void;
}) {
    return (
        <header class="header">
            <button type="button" class="icon-button only-narrow" aria-label="Show sessions" onClick={props.onMenu}>
                ☰
            </button>
            <div class="header-title">
                <h1>{props.title}</h1>
                {props.detail && <div class="header-detail">{props.detail}</div>}
            </div>
            <div class="header-tools">{props.children}</div>
        </header>
    );
}

export function ThemeButton() {
    const chosen = theme.value;
    return (
        <button
            type="button"
            class="icon-button"
            title={`Theme: ${chosen}`}
            aria-label={`Theme: ${chosen}. Change it.`}
            onClick={() => (theme.value = NEXT[chosen])}
        >
            {MARKS[chosen]}
        </button>
    );
}
