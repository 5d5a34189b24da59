import { current, reachable, wake } from "../state/server";

/** A quiet line while the server does not answer. Nothing on the page is lost, and it continues automatically. */
export function Banner() {
    const workspace = current.value;
    if (reachable.value && (workspace?.connected.value ?? true)) return null;
    return (
        <div class="banner" role="status">
            <span class="banner-mark" aria-hidden="true" />
            <span>The server does not answer. Your text is kept; the page continues when it does.</span>
            <button type="button" class="button-quiet" onClick={wake}>
                Try now
            </button>
        </div>
    );
}
