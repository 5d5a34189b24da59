/**
 * Text of models as HTML: markdown without HTML of its own, sanitised, in blocks.
 *
 * A streaming text is rendered block by block: blocks that cannot change any more are rendered once, and only the last
 * one is rendered again. Nothing is ever loaded from the network: images are links.
 */

import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { highlight } from "./highlight";

/** A growing block larger than this is plain text until it is complete. Characters. */
const GROWING_CHARS_MAX = 40_000;
/** Work on a streaming text in one frame, and on one that is shown for the first time. Milliseconds. */
const FRAME_MS = 8;
const FIRST_MS = 60;
/** After a render that took n ms, a growing block rests for this many times n: slow devices stay responsive. */
const REST_FACTOR = 3;
/** A longer list is rendered in parts: its finished items are not rendered again. Items. */
const LIST_ITEMS_MAX = 20;
/** The rest of a longer text is plain text: rendering it would stop the page for a second. Characters. */
const RENDERED_CHARS_MAX = 400_000;
/** Code in which syntax is highlighted. Characters. */
const HIGHLIGHT_CHARS_MAX = 60_000;

const LINK = /^(?:https?:\/\/|mailto:)/i;
/** Lines of this form may give a later block another meaning, so that a text is not split near them. */
const REFERENCE = /^ {0,3}\[[^\]\n]+\]:/m;

const markdown = new MarkdownIt({ html: false, linkify: true, typographer: false });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
markdown.validateLink = (url: string) => LINK.test(url.trim());

const escape = markdown.utils.escapeHtml;

markdown.renderer.rules.image = (tokens, index) => {
    const token = tokens[index];
    const source = String(token?.attrGet("src") ?? "");
    const label = escape(`image: ${token?.content || source}`);
    return LINK.test(source) ? `<a href="${escape(source)}">${label}</a>` : label;
};
// The policy of the page forbids style attributes.
for (const name of ["td_open", "th_open"]) {
    markdown.renderer.rules[name] = (tokens, index, options, _, renderer) => {
        const token = tokens[index];
        const align = /text-align:(\w+)/.exec(String(token?.attrGet("style") ?? ""))?.[1];
        if (token) token.attrs = align ? [["class", `align-${align}`]] : null;
        return renderer.renderToken(tokens, index, options);
    };
}

const TAGS =
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul span".split(
        " ",
    );
const ATTRIBUTES = ["href", "title", "class", "start"];
/** Classes of markdown-it, highlight.js and the rules above. No text of a model may use the page's own. */
const CLASSES = /^(?:language-[\w+#.-]+|align-\w+|hljs[\w-]*|function_|class_|inherited__|constant_|language_|title_)$/;

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
    if (node.tagName === "A") {
        const address = node.getAttribute("href") ?? "";
        if (!LINK.test(address)) node.removeAttribute("href");
        node.setAttribute("target", "_blank");
        node.setAttribute("rel", "noopener noreferrer");
    }
    const names = (node.getAttribute("class") ?? "").split(" ").filter((name) => CLASSES.test(name));
    if (names.length > 0) node.setAttribute("class", names.join(" "));
    else node.removeAttribute("class");
});

/** Return HTML as elements, with nothing in them but text, links and formatting. */
export function sanitise(html: string): DocumentFragment {
    return DOMPurify.sanitize(html, {
        ALLOWED_TAGS: TAGS,
        ALLOWED_ATTR: ATTRIBUTES,
        ALLOW_DATA_ATTR: false,
        ALLOW_ARIA_ATTR: false,
        RETURN_DOM_FRAGMENT: true,
    });
}

/** Return the offsets at which blocks begin, the first one excepted. What is before the last cannot change any more. */
export function blockStarts(text: string): number[] {
    const tokens: ReturnType<typeof markdown.parse> = [];
    markdown.block.parse(text, markdown, {}, tokens); // without the content of blocks, which is most of the work
    const lines: number[] = [];
    let items = 0;
    for (const token of tokens) {
        if (!token.map || token.nesting < 0) continue;
        if (token.level === 0) {
            lines.push(token.map[0]);
            items = 0;
        } else if (token.level === 1 && token.type === "list_item_open" && ++items > LIST_ITEMS_MAX) {
            lines.push(token.map[0]);
            items = 1;
        }
    }
    const starts: number[] = [];
    let offset = 0;
    let number = 0;
    for (const line of lines) {
        for (; number < line; number++) offset = text.indexOf("\n", offset) + 1;
        if (offset > 0) starts.push(offset);
    }
    return starts;
}

/** A text of a model in an element of its own, which may grow. */
export class GrowingMarkdown {
    readonly element = document.createElement("div");
    private text = "";
    private isComplete = false;
    /** What is before this offset is rendered and cannot change any more. */
    private stable = 0;
    private growing: HTMLElement | null = null;
    private isFirst = true;
    private restUntil = 0;
    private isScheduled = false;

    constructor() {
        this.element.className = "markdown";
        this.element.dir = "auto";
    }

    /** Show the text. `isComplete`: it does not grow any more. */
    update(text: string, isComplete: boolean): void {
        if (text === this.text && isComplete === this.isComplete) return;
        if (!text.startsWith(this.text) || this.isComplete) this.clear();
        this.text = text;
        this.isComplete = isComplete;
        this.work();
    }

    /** Render blocks for a part of a frame; the rest in later frames. */
    private work(): void {
        const began = performance.now();
        if (began < this.restUntil && !this.isComplete) return this.later(this.restUntil - began);
        const limit = began + (this.isFirst ? FIRST_MS : FRAME_MS);
        this.isFirst = false;
        const shown = this.text.slice(0, RENDERED_CHARS_MAX);
        const tail = shown.slice(this.stable);
        const starts = REFERENCE.test(tail) ? [] : blockStarts(tail);
        if (this.isComplete) starts.push(tail.length);
        let done = 0;
        for (const start of starts) {
            if (done > 0 && performance.now() > limit) {
                this.stable += done;
                return this.later(0);
            }
            this.addFinished(tail.slice(done, start));
            done = start;
        }
        this.stable += done;
        if (!this.isComplete) this.showGrowing(tail.slice(done));
        else if (this.text.length > shown.length) this.element.append(plain(this.text.slice(shown.length)));
        const end = performance.now();
        this.restUntil = end + REST_FACTOR * (end - began > FRAME_MS ? end - began : 0);
    }

    private later(ms: number): void {
        if (this.isScheduled) return;
        this.isScheduled = true;
        const run = () => {
            this.isScheduled = false;
            this.work();
        };
        if (ms > 0) setTimeout(run, ms);
        else requestAnimationFrame(run);
    }

    private addFinished(text: string): void {
        this.growing?.remove();
        this.growing = null;
        const block = rendered(text, true);
        const first = block.firstElementChild;
        const before = this.element.lastElementChild;
        // A list in parts looks like one.
        if (first && before && /^[OU]L$/.test(first.tagName) && first.tagName === before.tagName) {
            first.classList.add("continued");
        }
        this.element.append(block);
    }

    private showGrowing(text: string): void {
        if (text.length > GROWING_CHARS_MAX && this.growing?.firstElementChild?.className === "plain-text") {
            const node = this.growing.firstElementChild.firstChild as Text;
            node.appendData(text.slice(node.length));
            return;
        }
        const block = document.createElement("div");
        block.className = "growing";
        if (text.length > GROWING_CHARS_MAX) block.append(plain(text));
        else block.append(rendered(text, false));
        if (this.growing) this.growing.replaceWith(block);
        else this.element.append(block);
        this.growing = block;
    }

    private clear(): void {
        this.element.replaceChildren();
        this.stable = 0;
        this.growing = null;
        this.isFirst = true;
    }
}

/** Texts that are kept rendered while they are not in the document: a few screens. Items, the oldest are dropped. */
const KEPT_MAX = 120;
const kept = new Map<string, { owner: object; markdown: GrowingMarkdown }>();

/** Return the rendered text of a part, which a long list removes from the document and shows again. */
export function markdownOf(key: string, owner: object): GrowingMarkdown {
    const known = kept.get(key);
    kept.delete(key);
    const markdown = known?.owner === owner ? known.markdown : new GrowingMarkdown();
    kept.set(key, { owner, markdown });
    for (const oldest of kept.keys()) {
        if (kept.size <= KEPT_MAX) break;
        kept.delete(oldest);
    }
    return markdown;
}

function plain(text: string): HTMLElement {
    const element = document.createElement("div");
    element.className = "plain-text";
    element.textContent = text;
    return element;
}

function rendered(text: string, isComplete: boolean): DocumentFragment {
    const fragment = sanitise(markdown.render(text));
    for (const code of fragment.querySelectorAll<HTMLElement>("pre > code")) frame(code, isComplete);
    for (const table of fragment.querySelectorAll("table")) {
        const frame = document.createElement("div");
        frame.className = "table-frame";
        frame.tabIndex = 0;
        table.replaceWith(frame);
        frame.append(table);
    }
    return fragment;
}

/** Put a line with the language and a button above a block of code. */
function frame(code: HTMLElement, isComplete: boolean): void {
    const pre = code.parentElement;
    if (!pre) return;
    const language = /\blanguage-([\w+#.-]+)/.exec(code.className)?.[1] ?? "";
    const block = document.createElement("div");
    block.className = "code";
    const head = document.createElement("div");
    head.className = "code-head";
    const label = document.createElement("span");
    label.textContent = language;
    const copy = document.createElement("button");
    copy.type = "button";
    copy.className = "code-copy";
    copy.textContent = "Copy";
    copy.dataset.copy = "";
    head.append(label, copy);
    pre.replaceWith(block);
    pre.tabIndex = 0; // so that a long line can be scrolled by keyboard
    block.append(head, pre);
    if (isComplete && language && (code.textContent ?? "").length <= HIGHLIGHT_CHARS_MAX) highlight(code, language);
}

/** Copy the code of a block whose button was clicked. */
export function copyCode(event: Event): void {
    const button = event.target instanceof HTMLElement ? event.target.closest<HTMLElement>("[data-copy]") : null;
    const code = button?.closest(".code")?.querySelector("code")?.textContent;
    if (!button || code === undefined || code === null) return;
    // The clipboard is available to pages on this machine and over TLS only.
    const done = (text: string) => {
        button.textContent = text;
        setTimeout(() => (button.textContent = "Copy"), 1_500);
    };
    if (!navigator.clipboard) done("Not available");
    else
        navigator.clipboard.writeText(code).then(
            () => done("Copied"),
            () => done("Refused"),
        );
}
