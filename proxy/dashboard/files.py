"""The files of the dashboard: read once at start, served to everybody, since they hold nothing secret.

The page may run its own scripts and styles only, and talk to nobody but this replica. Knows nothing of what it shows.
"""

from importlib import resources
from typing import Final

from aiohttp import web

from bus.hop.admin import Page

_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

#: No script, style or picture from elsewhere, none written into the page, no frame around it, no text made markup.
SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS: Final = {
    "Content-Security-Policy": SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser must not mix the files of two versions
}


def file_pages() -> dict[str, Page]:
    """The page as /dashboard, and every file beside it as /dashboard/NAME."""
    folder = resources.files("proxy.dashboard") / "static"
    pages = {}
    for file in folder.iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            path = "/dashboard" if file.name == "index.html" else f"/dashboard/{file.name}"
            pages[path] = _page(file.read_bytes(), kind)
    return pages


def _page(body: bytes, kind: str) -> Page:
    async def page(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    return page
