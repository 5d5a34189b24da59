import { expect, test } from "vitest";
import { duration as durationMs } from "../src/parts/format";
import { duration, tokenCount } from "../src/view/number_text";

test("counts have at most one decimal place, and the unit of their rounded value", () => {
    const counts = [0, 950, 1_000, 2_357, 9_940, 9_960, 64_220, 186_700, 999_400, 999_600, 1_048_576, 12_400_000];
    const texts = ["0", "950", "1k", "2.4k", "9.9k", "10k", "64k", "187k", "999k", "1M", "1M", "12M"];
    expect(counts.map(tokenCount)).toEqual(texts);
});

test("durations have no seconds at a full minute", () => {
    expect([0, 59, 60, 61, 3_600].map(duration)).toEqual(["0 s", "59 s", "1 min", "1 min 1 s", "60 min"]);
    expect([400, 12_300, 59_700, 119_800].map(durationMs)).toEqual(["0.4 s", "12 s", "1 min", "2 min"]);
});
