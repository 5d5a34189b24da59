/** Work once per animation frame, however often it is requested. */

/** A hidden page has no animation frames. Its title and notifications are updated this often. Milliseconds. */
const HIDDEN_MS = 500;

export class FrameTask {
    private isPending = false;

    constructor(private readonly work: () => void) {}

    request(): void {
        if (this.isPending) return;
        this.isPending = true;
        const run = () => {
            if (!this.isPending) return;
            this.isPending = false;
            this.work();
        };
        if (typeof document === "undefined" || document.hidden) {
            setTimeout(run, HIDDEN_MS);
        } else {
            requestAnimationFrame(run);
            // A page that is hidden before the frame would otherwise wait until it is visible again.
            setTimeout(run, HIDDEN_MS);
        }
    }
}
