import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Announcer } from "./parts/announcer";
import { Banner } from "./parts/banner";
import { Dialogs } from "./parts/dialogs";
import { useDrawer } from "./parts/drawer";
import { Header } from "./parts/header";
import { Notices } from "./parts/notices";
import { SessionsList } from "./parts/sessions_list";
import { HomeScreen } from "./screens/home";
import { LaneScreen } from "./screens/lane";
import { LanesScreen } from "./screens/lanes";
import { LoginScreen } from "./screens/login";
import { SessionScreen } from "./screens/session";
import { SettingsScreen } from "./screens/settings";
import { StatsScreen } from "./screens/stats";
import { access } from "./state/access";
import { recoverInterrupted } from "./state/actions";
import { followNotifications } from "./state/notifications";
import { navigate, route, sessionPath } from "./state/route";
import { browser, current, enterWorkspace, startServer } from "./state/server";

/** The page: the login until the browser has access, then the screens. */
export function App() {
    const state = access.value;
    if (state.state !== "open") return <LoginScreen access={state} />;
    return (
        <>
            <Shell />
            <Dialogs />
            <Notices />
            <Announcer />
        </>
    );
}

let isStarted = false;

/** The list of sessions at the side and a screen beside it. */
function Shell() {
    const isListOpen = useSignal(false);
    const own = browser.value;
    const here = route.value;
    const workspaceId = "workspaceId" in here ? here.workspaceId : "";
    useEffect(() => {
        if (!isStarted) {
            void startServer();
            followNotifications();
            void recoverInterrupted();
        }
        isStarted = true;
    }, []);
    useEffect(() => {
        if (!own) return;
        if (own.session_id && !("sessionId" in here && here.sessionId === own.session_id)) {
            if (here.screen === "home") navigate(sessionPath(own.workspace_id, own.session_id), true);
        }
        if (workspaceId) enterWorkspace(workspaceId);
    }, [own, here]);
    const hide = () => (isListOpen.value = false);
    const list = useDrawer<HTMLDivElement>(isListOpen.value, hide);
    const hasList = !own?.session_id;
    return (
        <div class={`shell${hasList ? "" : " without-list"}`} data-access="open" data-screen={here.screen}>
            {hasList && (
                <div class={`shell-list${isListOpen.value ? " is-open" : ""}`} ref={list} tabIndex={-1}>
                    <SessionsList onNavigate={hide} />
                </div>
            )}
            {isListOpen.value && <button type="button" class="shell-shade" aria-label="Hide sessions" onClick={hide} />}
            <main class="shell-main">
                <Banner />
                <Screen onMenu={() => (isListOpen.value = true)} />
            </main>
        </div>
    );
}

function Screen({ onMenu }: { onMenu: () => void }) {
    const here = route.value;
    const workspace = current.value;
    switch (here.screen) {
        case "home":
            return <HomeScreen onMenu={onMenu} />;
        case "settings":
            return <SettingsScreen onMenu={onMenu} />;
        case "lanes":
            return <LanesScreen onMenu={onMenu} />;
        case "stats":
            return <StatsScreen onMenu={onMenu} />;
        case "lane":
            if (workspace?.id !== here.workspaceId) return <Header title="" onMenu={onMenu} />;
            return <LaneScreen workspace={workspace} sessionId={here.sessionId} onMenu={onMenu} />;
        case "session":
            if (workspace?.id !== here.workspaceId) return <Header title="" onMenu={onMenu} />;
            return (
                <SessionScreen
                    workspace={workspace}
                    sessionId={here.sessionId}
                    messageId={here.messageId}
                    onMenu={onMenu}
                />
            );
        default:
            return (
                <>
                    <Header title={here.screen === "unknown" ? "Not found" : here.screen} onMenu={onMenu} />
                    <p class="notice quiet">There is nothing at this address.</p>
                </>
            );
    }
}
