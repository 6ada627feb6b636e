import re

from aiohttp.test_utils import make_mocked_request

from proxy.dashboard.files import file_pages


async def body_of(path: str) -> tuple[str, dict[str, str]]:
    """Text and headers of a file as it is served."""
    answer = await file_pages()[path](make_mocked_request("GET", path))
    return answer.body.decode(), dict(answer.headers)


async def test_the_page_and_all_it_names_are_served():
    """Whatever the page and its modules and styles refer to is there."""
    pages = file_pages()
    html, _ = await body_of("/dashboard")
    named = {f"/{name}" for name in re.findall(r'(?:href|src)="([^"]+)"', html)}
    for path in pages:
        if path.endswith(".js"):
            text, _ = await body_of(path)
            named |= {f"/dashboard/{name}" for name in re.findall(r'from "\./([^"]+)"', text)}
    assert named >= {"/dashboard/main.js", "/dashboard/style.css", "/dashboard/icon.svg"}
    assert named <= set(pages)
    assert set(pages) - named == {"/dashboard"}  # no file that nobody asks for


async def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup():
    """No file names another host, sets markup from text, or has styles or scripts written into the page."""
    for path in file_pages():
        text, _ = await body_of(path)
        hosts = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", re.sub(r'"http://www\.w3\.org/2000/svg"', "", text))
        assert hosts == [], path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", text), path
        assert not re.search(r"<script>|<style|style=\"| on[a-z]+=\"", text), path


async def test_the_policy_is_strict():
    """Scripts, styles, pictures and connections of this origin only, no frames, no sniffing, no referrer."""
    for path in file_pages():
        _, headers = await body_of(path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "*" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


async def test_kinds_are_right():
    """A browser that does not sniff runs modules only as what they are."""
    for path, kind in (("/dashboard", "text/html"), ("/dashboard/main.js", "text/javascript")):
        _, headers = await body_of(path)
        assert headers["Content-Type"].startswith(kind)
