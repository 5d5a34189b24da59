/** Wheel, drag and pinch on a timeline, as changes of the visible time. */

import { pan, zoom, type Span } from "../view/time_scale";

/** A wheel event of this many pixels doubles the span. */
const WHEEL_PX = 300;
/** Movements below this are a click. Pixels. */
const CLICK_PX = 5;
/** Pixels of a wheel event in lines. */
const LINE_PX = 16;

export interface Gestures {
    view: () => Span;
    /** The visible time has changed. `isMoved`: its end no longer follows the present. */
    change: (view: Span, isMoved: boolean) => void;
    /** The edges of the picture. */
    box: () => DOMRect;
}

export class PictureGestures {
    private readonly pointers = new Map<number, number>();
    private moved = 0;

    constructor(private readonly target: Gestures) {}

    /** Whether the last press was a drag, so that its click does not count. */
    get wasDrag(): boolean {
        return this.moved > CLICK_PX;
    }

    /** Zoom or move. Returns whether the event is used; if not, it scrolls the rows. */
    wheel(event: WheelEvent, mayScroll: boolean): boolean {
        const scale = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE_PX : 1;
        const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
        const box = this.target.box();
        if (isSideways) {
            const delta = (event.deltaX || event.deltaY) * scale;
            this.target.change(pan(this.target.view(), delta / Math.max(1, box.width)), true);
            return true;
        }
        if (mayScroll && !event.ctrlKey && !event.metaKey) return false;
        // Pinches on a touch pad arrive as wheel events with the control key, in small steps.
        const speed = event.ctrlKey ? 4 : 1;
        this.zoomAt(2 ** ((event.deltaY * scale * speed) / WHEEL_PX), event.clientX);
        return true;
    }

    down(event: PointerEvent): void {
        if (this.pointers.size === 0) this.moved = 0;
        if (event.button === 0) this.pointers.set(event.pointerId, event.clientX);
    }

    move(event: PointerEvent): void {
        const before = this.pointers.get(event.pointerId);
        if (before === undefined) return;
        const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
        this.pointers.set(event.pointerId, event.clientX);
        this.moved += Math.abs(event.clientX - before);
        if (!this.wasDrag) return;
        const other = others[0]?.[1];
        if (other === undefined) {
            const part = (before - event.clientX) / Math.max(1, this.target.box().width);
            this.target.change(pan(this.target.view(), part), true);
        } else {
            const [from, to] = [Math.abs(before - other), Math.abs(event.clientX - other)];
            if (from > 1 && to > 1) this.zoomAt(from / to, (event.clientX + other) / 2);
        }
    }

    up(event: PointerEvent): void {
        this.pointers.delete(event.pointerId);
    }

    private zoomAt(factor: number, clientX: number): void {
        const box = this.target.box();
        const at = (clientX - box.left) / Math.max(1, box.width);
        this.target.change(zoom(this.target.view(), factor, at), false);
    }
}
