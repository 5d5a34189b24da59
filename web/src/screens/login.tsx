import type { Access } from "../state/access";

const TEXTS: Record<Exclude<Access["state"], "open">, [title: string, text: string]> = {
    starting: ["kedge", "Connecting …"],
    none: ["This browser has no access", "Open the page with the link that this command prints:"],
    expired: ["This link has expired or was already used", "A link works once. Get another one with:"],
    ended: ["This browser no longer has access", "It was logged out or revoked. Get a new link with:"],
    unreachable: ["The server does not answer", "The page continues when it does. To start the server, run:"],
};

/** What a browser without access sees: why, and how to get it. */
export function LoginScreen({ access }: { access: Access }) {
    if (access.state === "open") return null;
    const [title, text] = TEXTS[access.state];
    return (
        <main class="notice" data-access={access.state}>
            <h1>{title}</h1>
            <p class="quiet" role="status">
                {text} {access.state !== "starting" && <code>kedge web</code>}
            </p>
        </main>
    );
}
