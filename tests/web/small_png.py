"""PNG files with a palette, which are a third as large as those of Chromium."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from playwright.async_api import Page

#: Decode a picture, choose 256 of its colours, and replace each by the nearest of these. The next colour is always the
#: one with the largest error so far: its distance from those chosen, times its number of pixels.
REDUCE = """async (source) => {
    const image = await createImageBitmap(await (await fetch(source)).blob());
    const { width, height } = image;
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
    const counts = new Map();
    for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
    const colours = [...counts].map(([pixel, count]) => {
        return { pixel, count, rgb: [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255], error: 1e9, index: 0 };
    });
    const palette = [];
    const cost = ({ error, count }) => error * count;
    while (palette.length < 256) {
        const next = colours.reduce((best, one) => (cost(one) > cost(best) ? one : best));
        if (next.error === 0) break;
        for (const one of colours) {
            const error = one.rgb.reduce((sum, value, at) => sum + (value - next.rgb[at]) ** 2, 0);
            if (error < one.error) Object.assign(one, { error, index: palette.length });
        }
        palette.push(next.rgb);
    }
    const indexes = new Map(colours.map(({ pixel, index }) => [pixel, index]));
    let text = "";
    for (let at = 0; at < pixels.length; at += 4096)
        text += String.fromCharCode(...Array.from(pixels.subarray(at, at + 4096), (pixel) => indexes.get(pixel)));
    return { width, height, colours: counts.size, palette, rows: btoa(text) };
}"""


async def reduced(page: Page, png: bytes) -> tuple[bytes, int]:
    """Return the picture with at most 256 colours, and how many it had. The page must allow `data:` addresses."""
    source = "data:image/png;base64," + base64.b64encode(png).decode()
    image: dict[str, Any] = await page.evaluate(REDUCE, source)
    width, height = image["width"], image["height"]
    pixels = base64.b64decode(image["rows"])
    rows = b"".join(b"\0" + pixels[row * width : (row + 1) * width] for row in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(value for colour in image["palette"] for value in colour)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks), image["colours"]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
