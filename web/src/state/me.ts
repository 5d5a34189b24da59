/** What this browser may do. The server decides; the page only leaves out the controls that it would refuse. */

import { browser } from "./server";

/** Whether acting controls are shown: not for a spectator, and not before the rights are known. */
export function canAct(): boolean {
    return browser.value?.rights === "full";
}

/** Whether this browser only watches. */
export function isSpectator(): boolean {
    return browser.value?.rights === "read_only";
}

/** Whether this browser reaches one session only. It then cannot create sessions or store rules for the workspace. */
export function hasOneSession(): boolean {
    return Boolean(browser.value?.session_id);
}
