"""Draw the icon of the web page, an anchor, as SVG and PNG: python scripts/web_icons.py"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

PUBLIC = Path(__file__).resolve().parent.parent / "web" / "public"
BACKGROUND, LINE = (31, 95, 191), (255, 255, 255)
#: In a square of 100 units, inside the circle that every mask of a phone keeps (radius 40).
WIDTH = 7.0
RING = (50.0, 27.0, 7.5)
#: Shank, stock, and the two flukes.
STROKES = [
    ((50.0, 35.0), (50.0, 77.0)),
    ((38.0, 43.0), (62.0, 43.0)),
    ((27.0, 57.0), (23.5, 66.0)),
    ((73.0, 57.0), (76.5, 66.0)),
]
#: The arms: an arc below the centre, between two angles in degrees.
ARC = (50.0, 50.0, 27.0, 20.0, 160.0)


def svg() -> str:
    x, y, radius, first, last = ARC
    ends = [(x + radius * math.cos(math.radians(a)), y + radius * math.sin(math.radians(a))) for a in (first, last)]
    path = "".join(f"M{a[0]:g} {a[1]:g}L{b[0]:g} {b[1]:g}" for a, b in STROKES)
    path += f"M{ends[0][0]:.1f} {ends[0][1]:.1f}A{radius:g} {radius:g} 0 0 1 {ends[1][0]:.1f} {ends[1][1]:.1f}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100">\n'
        f'  <rect width="100" height="100" rx="20" fill="{_hex(BACKGROUND)}"/>\n'
        f'  <g fill="none" stroke="{_hex(LINE)}" stroke-width="{WIDTH:g}" stroke-linecap="round">\n'
        f'    <circle cx="{RING[0]:g}" cy="{RING[1]:g}" r="{RING[2]:g}"/>\n'
        f'    <path d="{path}"/>\n'
        "  </g>\n</svg>\n"
    )


def _hex(colour: tuple[int, int, int]) -> str:
    return "#" + bytes(colour).hex()


def _distance(x: float, y: float) -> float:
    """Return the distance of a point to the middle of the nearest line."""
    nearest = abs(math.hypot(x - RING[0], y - RING[1]) - RING[2])
    for (ax, ay), (bx, by) in STROKES:
        along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2)
        along = min(1.0, max(0.0, along))
        nearest = min(nearest, math.hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay)))
    cx, cy, radius, first, last = ARC
    angle = min(last, max(first, math.degrees(math.atan2(y - cy, x - cx)) % 360))
    if angle < last or math.degrees(math.atan2(y - cy, x - cx)) % 360 <= 270:
        end = math.radians(angle)
        nearest = min(nearest, math.hypot(x - cx - radius * math.cos(end), y - cy - radius * math.sin(end)))
    return nearest


def _rows(size: int) -> Iterator[bytes]:
    scale = 100 / size
    for row in range(size):
        line = bytearray([0])  # no filter
        for column in range(size):
            edge = (_distance((column + 0.5) * scale, (row + 0.5) * scale) - WIDTH / 2) / scale
            cover = min(1.0, max(0.0, 0.5 - edge))
            line += bytes(round(b + (w - b) * cover) for b, w in zip(BACKGROUND, LINE, strict=True))
        yield bytes(line)


def png(size: int) -> bytes:
    """Return the icon without rounded corners: phones apply a mask of their own."""

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(_rows(size)), 9)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", pixels) + part(b"IEND", b"")


if __name__ == "__main__":
    (PUBLIC / "icon.svg").write_text(svg())
    for size in (192, 512):
        (PUBLIC / f"icon-{size}.png").write_bytes(png(size))
