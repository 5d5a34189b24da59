/** Settings of this browser. Nothing here changes the server, except for the log-out. */

import { Header } from "../parts/header";
import { logOut } from "../state/access";
import { isSpectator } from "../state/me";
import { notifications, setNotifications } from "../state/notifications";
import { reported } from "../state/notices";
import { browser } from "../state/server";
import { theme, type Theme } from "../state/theme";

const THEMES: readonly (readonly [Theme, string])[] = [
    ["system", "as the system"],
    ["light", "light"],
    ["dark", "dark"],
];

const NOTIFICATIONS = {
    on: "",
    off: "",
    refused: "The browser refuses notifications of this page. Allow them in its settings for this address.",
    unavailable: "Not available here: browsers notify only for pages of this machine or over HTTPS.",
    unsupported: "This browser does not show notifications of pages, as browsers on Android. Others do.",
};

export function SettingsScreen({ onMenu }: { onMenu: () => void }) {
    const own = browser.value;
    return (
        <>
            <Header title="Settings" onMenu={onMenu} />
            <div class="home settings">
                <fieldset class="choices choices-row">
                    <legend>Theme</legend>
                    {THEMES.map(([value, text]) => (
                        <label key={value} class="choice">
                            <input
                                type="radio"
                                name="theme"
                                checked={theme.value === value}
                                onChange={() => (theme.value = value)}
                            />
                            {text}
                        </label>
                    ))}
                </fieldset>
                <fieldset class="choices">
                    <legend>Notifications</legend>
                    <label class="choice">
                        <input
                            type="checkbox"
                            checked={notifications.value === "on"}
                            disabled={notifications.value === "unavailable" || notifications.value === "unsupported"}
                            onChange={(event) => void setNotifications(event.currentTarget.checked)}
                        />
                        When a run ends or asks while this page is hidden
                    </label>
                    {NOTIFICATIONS[notifications.value] && <p class="quiet">{NOTIFICATIONS[notifications.value]}</p>}
                </fieldset>
                <section>
                    <h2>This browser</h2>
                    {own && (
                        <p>
                            {own.label || "The owner of the server"}
                            {own.session_id && ", one session"}
                            {isSpectator() && ", may only read"}
                            {own.expires_at > 0 && (
                                <span class="quiet"> · until {new Date(own.expires_at).toLocaleDateString()}</span>
                            )}
                        </p>
                    )}
                    <p class="quiet">
                        List or revoke browsers on the machine of the server with <code>kedge web list</code> and{" "}
                        <code>kedge web revoke</code>.
                    </p>
                    <button type="button" class="button" onClick={() => void reported(logOut())}>
                        Log out
                    </button>
                </section>
            </div>
        </>
    );
}
