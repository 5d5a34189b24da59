import { announcement } from "../state/announcements";

/** What a screen reader says: new asks and the ends of Runs. */
export function Announcer() {
    return (
        <div class="visually-hidden" role="status" aria-live="polite">
            {announcement.value}
        </div>
    );
}
