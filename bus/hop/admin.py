"""Who may see the admin pages: everybody who reaches the listener, or whoever has the key."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from bus.hop.openai_error import error_body
from bus.hop.secrets import Secret, bearer

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Pages of balancers and orchestrators, which have no key and learn nothing but whether this process serves.
OPEN_PAGES: Final = frozenset({"/health", "/ready"})


def behind_key(pages: Mapping[str, Page], key: Secret | None) -> dict[str, Page]:
    """The same pages, all but the open ones for those who have the key only; without a key as they are."""
    return {path: page if key is None or path in OPEN_PAGES else _behind(page, key) for path, page in pages.items()}


def _behind(page: Page, key: Secret) -> Page:
    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        if key.is_known_to(bearer(request.headers.get("authorization"))):
            return await page(request)
        body = error_body("the admin key is needed", kind="invalid_request_error", code="invalid_admin_key")
        headers = {"WWW-Authenticate": "Bearer"}
        return web.Response(status=401, body=body, content_type="application/json", headers=headers)

    return guarded
