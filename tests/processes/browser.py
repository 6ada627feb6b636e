"""A headless Chromium for tests of pages, driven by Playwright, with all that it complains about and asks for."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, sync_playwright

#: Nothing but the page: no GPU of the machine, no errands of the browser's own.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium): pages are not looked at"
)


class Tab:
    """One page of a browser, with what it said on the console and where it asked."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda fault: self.errors.append(f"uncaught: {fault}"))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(f"{kind}: {text}")

    def text(self, selector: str) -> str:
        """Text of the first element that fits."""
        return self.page.locator(selector).first.inner_text()

    def overflow_px(self) -> int:
        """By how much the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")


@contextmanager
def browser(folder: Path) -> Iterator[Callable[..., Tab]]:
    """Run a browser with an empty profile; what is given opens a URL in a new tab."""
    with sync_playwright() as playwright:
        context: BrowserContext = playwright.chromium.launch_persistent_context(
            folder, executable_path=CHROMIUM, args=list(ARGUMENTS), viewport={"width": 1280, "height": 900}
        )
        context.set_default_timeout(30_000)

        def open_tab(url: str) -> Tab:
            tab = Tab(context.new_page())
            tab.page.goto(url)
            return tab

        try:
            yield open_tab
        finally:
            context.close()
