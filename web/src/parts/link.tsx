import type { ComponentChildren } from "preact";
import { navigate } from "../state/route";

interface LinkProps {
    to: string;
    children: ComponentChildren;
    class?: string;
    title?: string;
    "aria-label"?: string;
    tabIndex?: number;
    isCurrent?: boolean;
    onNavigate?: () => void;
}

/** A link to another screen. A new tab or window is left to the browser. */
export function Link({ to, children, isCurrent, onNavigate, ...rest }: LinkProps) {
    const go = (event: MouseEvent) => {
        if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        navigate(to);
        onNavigate?.();
    };
    return (
        <a {...rest} {...(isCurrent ? { "aria-current": "page" as const } : {})} href={to} onClick={go}>
            {children}
        </a>
    );
}
