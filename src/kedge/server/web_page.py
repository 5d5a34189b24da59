"""The files of the web page. They contain no secret and need no login: the page reads all content from the API."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import kedge
from kedge.errors import RouteNotFound
from kedge.server.asgi import Raw
from kedge.server.auth import Headers

#: Scripts, styles and requests of this origin only; no frames in it or around it.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
#: Names below `/`: letters, digits, `_`, `-` and `.`; none begins with a dot.
_PATH = re.compile(r"/(?:[\w-][\w.-]*/)*[\w-][\w.-]*", re.ASCII)
#: Screens of the page, which reads the path itself (`web/src/state/route.ts`).
_SCREEN = re.compile(r"/(?:lanes|stats|settings|w/[\w.~@:+-]+(?:/s/[\w.~@:+-]+(?:/lane)?)?)?", re.ASCII)
#: The build puts a hash of the content into these names: a file of this name never changes.
_HASHED = re.compile(r"/assets/[\w.-]+-[\w-]{8}\.\w+", re.ASCII)
_HASHED_CACHE = "public, max-age=31536000, immutable"
_PATH_CHARS_MAX = 200
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
#: Encodings that the build made, in the order of preference: name, suffix of the file.
_ENCODINGS = ((b"br", ".br"), (b"gzip", ".gz"))

_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>kedge</title>
<h1>The web page is not built</h1>
<p>This server runs from a clone of the repository. Build the page there with <code>scripts/web</code>, then reload.</p>
</html>
"""


class WebPage:
    def __init__(self, directory: Path | None = None) -> None:
        """`directory` has the built page: `index.html`, `assets/`, and compressed copies of the files."""
        self._directory = directory or Path(kedge.__file__).parent / "web_page"

    def may_have(self, path: str) -> bool:
        if len(path) > _PATH_CHARS_MAX or path.startswith("/v1/"):
            return False
        is_name = _PATH.fullmatch(path) is not None and _suffix(path) in _TYPES
        return is_name or _SCREEN.fullmatch(path) is not None

    async def file(self, path: str, headers: Headers) -> Raw:
        """Return the file of a path that it may have."""
        name = "/index.html" if _SCREEN.fullmatch(path) else path
        content = await asyncio.to_thread(self._read, name, _accepted(headers))
        if content is None and name != path:
            return Raw(_NOT_BUILT.encode(), _TYPES[".html"], status=404, headers=_page_headers())
        if content is None:
            raise RouteNotFound(f"No page {path}. The web page is at /, the API below /v1.")
        data, encoding = content
        more = [*_page_headers(), (b"vary", b"accept-encoding")]
        if encoding:
            more.append((b"content-encoding", encoding))
        return Raw(
            data, _TYPES[_suffix(name)], headers=more, cache=_HASHED_CACHE if _HASHED.fullmatch(name) else "no-cache"
        )

    def _read(self, name: str, accepted: set[bytes]) -> tuple[bytes, bytes] | None:
        """Return the content and its encoding. Blocking. None: there is no such file."""
        for encoding, suffix in (*_ENCODINGS, (b"", "")):
            if encoding and encoding not in accepted:
                continue
            path = self._directory / (name[1:] + suffix)
            try:
                if path.is_file() and path.resolve().is_relative_to(self._directory.resolve()):
                    return path.read_bytes(), encoding
            except OSError:
                continue
        return None


def _page_headers() -> Headers:
    return [(b"content-security-policy", CONTENT_SECURITY_POLICY.encode())]


def _accepted(headers: Headers) -> set[bytes]:
    """Return the encodings that the browser accepts."""
    values = b",".join(value for name, value in headers if name == b"accept-encoding").split(b",")
    pairs = (value.partition(b";") for value in values)
    return {name.strip().lower() for name, _, quality in pairs if quality.strip() not in (b"q=0", b"q=0.0")}


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
