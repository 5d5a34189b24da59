/** The names of users in texts: a port of `client/view/author_text.py`. The owner has none. */

import { visibleLine } from "./visible_text";

/** Return the name as one line; empty: the owner. */
export function authorName(author: string | undefined): string {
    return author ? visibleLine(author) : "";
}

/** Return ` by NAME`; empty for the owner. */
export function byAuthor(author: string | undefined): string {
    const name = authorName(author);
    return name ? ` by ${name}` : "";
}
