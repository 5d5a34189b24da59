import type { Phase } from "../view/lane_layout";

/** Lines of the marks at the end of a Run, around 0,0. They differ in shape, so that colour is not needed. */
const PATHS: Record<Phase, string> = {
    queued: "M-4 0 H4",
    active: "M-3 -4.5 L4 0 L-3 4.5 Z",
    folded: "M4 4 H0 V-4 M-3 -1 L0 -4 L3 -1",
    completed: "M-4.5 0 L-1.5 3.5 L4.5 -4",
    failed: "M-4 -4 L4 4 M4 -4 L-4 4",
    cancelled: "M-4 -4 H4 V4 H-4 Z",
    interrupted: "M1 -5 L-3 0.5 H3 L-1 5",
};

export function GlyphPath({ phase, x, y }: { phase: Phase; x: number; y: number }) {
    return <path class={`lane-glyph lane-glyph-${phase}`} d={PATHS[phase]} transform={`translate(${x} ${y})`} />;
}

export function Glyph({ phase }: { phase: Phase }) {
    return (
        <svg class="lane-glyph-box" width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true">
            <GlyphPath phase={phase} x={0} y={0} />
        </svg>
    );
}
