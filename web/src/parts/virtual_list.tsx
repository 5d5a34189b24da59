/**
 * A long list of items of any height, of which only those near the view are in the document.
 *
 * Items that were never shown have an estimated height. The view keeps its place relative to an anchor, the item at its
 * upper edge, whatever changes above it; or it follows the end.
 */

import { Component, createRef, type ComponentChild } from "preact";

/** Items are rendered this far above and below the view, so that scrolling does not show gaps. Pixels. */
const MARGIN_PX = 700;
/** This close to the end counts as at the end. Pixels. */
const END_PX = 24;

export interface ListItem {
    key: string;
    /** The height before it is measured. Pixels. */
    estimate: number;
}

interface Props<T extends ListItem> {
    items: T[];
    render: (item: T) => ComponentChild;
    label: string;
    /** Receives this list: Preact passes a `ref` on to components as a property. */
    control: { current: VirtualList<T> | null };
    /** Called when the view comes near the first item. */
    onNearStart: () => void;
    /** Called when the view reaches or leaves the end. */
    onEnd: (isAtEnd: boolean) => void;
    onClick?: (event: MouseEvent) => void;
}

interface State {
    start: number;
    end: number;
}

export class VirtualList<T extends ListItem> extends Component<Props<T>, State> {
    override state: State = { start: 0, end: 0 };
    private readonly frame = createRef<HTMLDivElement>();
    private readonly above = createRef<HTMLDivElement>();
    private readonly below = createRef<HTMLDivElement>();
    private readonly body = createRef<HTMLDivElement>();
    private readonly heights = new Map<string, number>();
    /** Where each item begins, and the end of the last one. */
    private starts: number[] = [0];
    private indexes = new Map<string, number>();
    private isAtEnd = true;
    private anchor: { key: string; offset: number } | null = null;
    /** The scroll position that this list set itself. */
    private own = -1;
    private laidOut: T[] | null = null;
    private observer: ResizeObserver | null = null;

    /** Follow the end. */
    toEnd(): void {
        this.follow(true);
        this.settle();
    }

    /** Bring an item to the upper edge. */
    toItem(key: string): void {
        if (!this.indexes.has(key)) return;
        this.follow(false);
        this.anchor = { key, offset: -MARGIN_TOP_PX };
        this.settle();
    }

    override componentDidMount(): void {
        this.props.control.current = this;
        this.observer = new ResizeObserver(() => this.settle());
        if (this.frame.current) this.observer.observe(this.frame.current);
        if (this.body.current) this.observer.observe(this.body.current);
        this.settle();
    }

    override componentDidUpdate(): void {
        this.settle();
    }

    override componentWillUnmount(): void {
        this.observer?.disconnect();
        this.props.control.current = null;
    }

    private follow(isAtEnd: boolean): void {
        if (this.isAtEnd === isAtEnd) return;
        this.isAtEnd = isAtEnd;
        this.props.onEnd(isAtEnd);
    }

    /** Compute where items begin, from measured and estimated heights. */
    private layOut(items: T[]): void {
        if (items !== this.laidOut) {
            this.laidOut = items;
            this.indexes = new Map(items.map((item, index) => [item.key, index]));
            this.starts = [0];
        }
        for (let index = this.starts.length - 1; index < items.length; index++) {
            const item = items[index];
            if (item) this.starts.push((this.starts[index] ?? 0) + (this.heights.get(item.key) ?? item.estimate));
        }
    }

    /** Measure the items in the document. What begins after one of another height begins elsewhere. */
    private measure(body: HTMLElement): void {
        for (const child of body.children) {
            const key = (child as HTMLElement).dataset.key ?? "";
            // Exact: rounded heights of many items add up to a visible jump.
            const height = child.getBoundingClientRect().height;
            if (this.heights.get(key) === height) continue;
            this.heights.set(key, height);
            const index = this.indexes.get(key);
            if (index !== undefined) this.starts.length = Math.min(this.starts.length, index + 1);
        }
    }

    private indexAt(y: number): number {
        let low = 0;
        let high = this.starts.length - 1;
        while (low < high) {
            const middle = (low + high + 1) >> 1;
            if ((this.starts[middle] ?? 0) <= y) low = middle;
            else high = middle - 1;
        }
        return low;
    }

    private rangeAt(top: number, height: number): State {
        const count = this.props.items.length;
        const start = Math.min(this.indexAt(Math.max(0, top - MARGIN_PX)), Math.max(0, count - 1));
        return { start, end: Math.min(count, this.indexAt(top + height + MARGIN_PX) + 1) };
    }

    /** The scroll position of the anchor, or of the end. */
    private wanted(frame: HTMLElement): number {
        const total = this.starts.at(-1) ?? 0;
        if (this.isAtEnd) return Math.max(0, total + END_SPACE_PX - frame.clientHeight);
        const index = this.anchor ? this.indexes.get(this.anchor.key) : undefined;
        if (index === undefined || !this.anchor) return Math.min(frame.scrollTop, total);
        return Math.max(0, (this.starts[index] ?? 0) + this.anchor.offset);
    }

    /** Measure what is in the document, put the view back in its place, and render what is missing there. */
    private settle(): void {
        const frame = this.frame.current;
        const body = this.body.current;
        if (!frame || !body) return;
        this.layOut(this.props.items);
        this.measure(body);
        this.layOut(this.props.items);
        this.placeSpacers(this.state);
        const wanted = this.wanted(frame);
        if (Math.abs(frame.scrollTop - wanted) >= 1) frame.scrollTop = wanted;
        this.own = frame.scrollTop;
        const range = this.rangeAt(frame.scrollTop, frame.clientHeight);
        if (range.start < this.state.start || range.end > this.state.end || this.isFar(range)) this.setState(range);
        if (frame.scrollTop < 2 * MARGIN_PX) this.props.onNearStart();
    }

    /** Whether many more items are in the document than are needed. */
    private isFar(range: State): boolean {
        const spare = (this.starts[range.start] ?? 0) - (this.starts[this.state.start] ?? 0);
        const spareEnd = (this.starts[this.state.end] ?? 0) - (this.starts[range.end] ?? 0);
        return spare > 2 * MARGIN_PX || spareEnd > 2 * MARGIN_PX;
    }

    private placeSpacers({ start, end }: State): void {
        const total = this.starts.at(-1) ?? 0;
        const below = Math.max(0, total - (this.starts[Math.min(end, this.starts.length - 1)] ?? total));
        setHeight(this.above.current, this.starts[start] ?? 0);
        setHeight(this.below.current, below + END_SPACE_PX);
    }

    private scrolled = (): void => {
        const frame = this.frame.current;
        if (!frame || Math.abs(frame.scrollTop - this.own) < 1) return;
        this.own = frame.scrollTop;
        this.follow(frame.scrollTop + frame.clientHeight >= frame.scrollHeight - END_PX);
        const index = this.indexAt(frame.scrollTop);
        const item = this.props.items[index];
        this.anchor = item ? { key: item.key, offset: frame.scrollTop - (this.starts[index] ?? 0) } : null;
        this.settle();
    };

    override render({ items, render, label, onClick }: Props<T>, { start, end }: State) {
        this.layOut(items);
        // At the end, new items are rendered at once: they would be seen anyway.
        const until = this.isAtEnd ? items.length : Math.min(end, items.length);
        const from = Math.min(start, until);
        return (
            <div class="list" ref={this.frame} onScroll={this.scrolled} tabIndex={0} role="region" aria-label={label}>
                <div ref={this.above} />
                <div ref={this.body} onClick={onClick}>
                    {items.slice(from, until).map((item) => (
                        <div key={item.key} data-key={item.key} class="list-item">
                            {render(item)}
                        </div>
                    ))}
                </div>
                <div ref={this.below} />
            </div>
        );
    }
}

/** Free space above an item that a link leads to, and below the last one. Pixels. */
const MARGIN_TOP_PX = 16;
const END_SPACE_PX = 16;

function setHeight(element: HTMLElement | null, height: number): void {
    const value = `${height}px`;
    if (element && element.style.height !== value) element.style.height = value;
}
