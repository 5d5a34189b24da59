import { closeNotice, notices } from "../state/notices";

/** Notices at the bottom of the page. Errors are announced at once, the others when the reader pauses. */
export function Notices() {
    const shown = notices.value;
    return (
        <div class="notices">
            {(["polite", "assertive"] as const).map((live) => (
                <div key={live} aria-live={live} role={live === "assertive" ? "alert" : "status"}>
                    {shown
                        .filter(({ kind }) => (kind === "error") === (live === "assertive"))
                        .map(({ id, text, kind }) => (
                            <div key={id} class={`notice-card notice-${kind}`}>
                                <span>{text}</span>
                                <button
                                    type="button"
                                    class="icon-button"
                                    aria-label="Close this notice"
                                    onClick={() => closeNotice(id)}
                                >
                                    ✕
                                </button>
                            </div>
                        ))}
                </div>
            ))}
        </div>
    );
}
