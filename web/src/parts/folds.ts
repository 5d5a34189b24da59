/** What the user has unfolded or folded. It outlives the elements, which a long list removes and creates again. */

import { useState } from "preact/hooks";

/** Items, the oldest are dropped first. */
const FOLDS_MAX = 5_000;
const toggled = new Set<string>();

/** Return whether a part is unfolded, and a function that changes it. */
export function useFold(key: string, isOpenAtFirst: boolean): [boolean, () => void] {
    const [, setCount] = useState(0);
    const toggle = () => {
        if (!toggled.delete(key)) toggled.add(key);
        for (const oldest of toggled) {
            if (toggled.size <= FOLDS_MAX) break;
            toggled.delete(oldest);
        }
        setCount((count) => count + 1);
    };
    return [toggled.has(key) !== isOpenAtFirst, toggle];
}
