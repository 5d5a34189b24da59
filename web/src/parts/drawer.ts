import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";

/**
 * A panel that is above the screen if there is no space beside it. While it is open it has the focus, and Escape closes
 * it. Returns the reference of its element, which needs a `tabIndex`.
 */
export function useDrawer<T extends HTMLElement>(isOpen: boolean, close: () => void): RefObject<T | null> {
    const panel = useRef<T>(null);
    useEffect(() => {
        if (!isOpen) return;
        const before = document.activeElement;
        panel.current?.focus();
        const onKey = (event: KeyboardEvent) => {
            // An open dialog or list closes itself first.
            if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
            close();
        };
        document.addEventListener("keydown", onKey);
        return () => {
            document.removeEventListener("keydown", onKey);
            const active = document.activeElement;
            const isFree = active === document.body || panel.current?.contains(active);
            if (isFree && before instanceof HTMLElement && before.isConnected) before.focus();
        };
    }, [isOpen]);
    return panel;
}
