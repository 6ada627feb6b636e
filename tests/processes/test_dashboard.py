"""The dashboard as a browser shows it: what is there, what moves, what unknown is like, why a request went there."""

import itertools
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.processes.browser import Tab, browser, needs_chromium
from tests.processes.fleet import Fleet, Replica, fetch, until

pytestmark = [pytest.mark.processes, needs_chromium]

KEY = "0123456789abcdef0123456789abcdef"
TTL_S = 4.0
PHONE = {"width": 375, "height": 740}


@pytest.fixture(scope="module")
def open_tab(tmp_path_factory) -> Iterator[Callable[[str], Tab]]:
    """Give a browser with an empty profile."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def fleet(start_fleet) -> Fleet:
    """Give three instances and one replica, with some traffic behind them."""
    started = start_fleet(engines=3, replicas=1, worker=["--ttl-ms", str(int(TTL_S * 1000))])
    for number in range(6):
        chat(started.replicas[0], f"question {number}")
    return started


@pytest.fixture
def traffic(fleet) -> Iterator[None]:
    """Let three clients ask one question after the other as long as the test runs."""
    stop = threading.Event()

    def run(client: int) -> None:
        for number in itertools.count():
            if stop.wait(0.1):
                return
            chat(fleet.replicas[0], f"client {client} asks for the {number}. time", 30)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(3)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def chat(replica: Replica, text: str, most_tokens: int = 5) -> None:
    """Ask and read the answer."""
    body = {"model": "sim", "max_tokens": most_tokens, "messages": [{"role": "user", "content": text}]}
    fetch(f"{replica.url}/v1/chat/completions", body=body)


def debug(replica: Replica, page: str) -> dict:
    """A debug page of a replica."""
    status, body = fetch(f"{replica.admin_url}/debug/{page}")
    assert status == 200, body
    return msgspec.json.decode(body)


def open_dashboard(open_tab: Callable[[str], Tab], replica: Replica) -> Tab:
    """Open the page and wait until it shows the fleet."""
    tab = open_tab(f"{replica.admin_url}/dashboard")
    tab.page.locator("#instance-rows tr").first.wait_for()
    return tab


def row(tab: Tab, instance: str):
    """Row of an instance in the table."""
    return tab.page.locator("#instance-rows tr").filter(has=tab.page.get_by_text(instance, exact=True))


def panel(tab: Tab, instance: str):
    """Picture of an instance."""
    return tab.page.locator(".panel").filter(has=tab.page.get_by_text(instance, exact=True))


def number_in(text: str) -> float:
    """First number of a text; exact zero, signs of imputation and weights included or left out."""
    return float(re.search(r"-?[0-9.]+(?:e-?[0-9]+)?", text.replace(",", ""))[0])


def answers_shown(tab: Tab) -> int:
    """Number of good answers that the page gives for its replica."""
    found = re.search(r"200 ×([0-9,]+)", tab.text("#fact-replica .more"))
    return int(found[1].replace(",", "")) if found else 0


def test_everything_is_there_and_moves(fleet, open_tab, traffic):
    """Verdict, facts, a line and a row for each instance, and choices; they follow the traffic without errors."""
    replica = fleet.replicas[0]
    tab = open_dashboard(open_tab, replica)
    until(lambda: tab.text("#headline") == "All 3 instances are ready", "a verdict")
    assert tab.text("#fact-bus dd") == "fresh"
    assert tab.text("#fact-tier dd") == "predicted_ttft"
    assert replica.name in tab.text("#replica")
    for instance in fleet.workers:
        assert "ready" in row(tab, instance).inner_text()
        assert panel(tab, instance).locator(".line").get_attribute("d").startswith("M")
    assert tab.page.locator("#choice-list li").count() >= 6  # those before the page was opened among them
    before, newest = answers_shown(tab), tab.text("#choice-list code")
    until(lambda: answers_shown(tab) > before and tab.text("#choice-list code") != newest, "the page follows")
    assert tab.errors == []
    assert tab.hosts == {urlsplit(replica.admin_url).netloc}


def test_a_page_opened_later_shows_what_was_before(fleet, open_tab):
    """The lines of a page that was just opened begin before it was."""
    replica = fleet.replicas[0]
    until(lambda: len(debug(replica, "history")["ages_s"]) >= 5, "the replica remembers")
    tab = open_dashboard(open_tab, replica)
    line = panel(tab, "i1").locator(".line").get_attribute("d")
    assert len(re.findall("[ML]", line)) >= 5


def test_a_click_shows_the_terms_of_that_choice(fleet, open_tab):
    """The explanation has every candidate's terms and score, the same numbers as /debug/selections."""
    replica = fleet.replicas[0]
    chat(replica, "a question of some words, so that its prefill is worth a number")
    tab = open_dashboard(open_tab, replica)
    choice = tab.page.locator(".choice").first
    choice.wait_for()
    request_id = choice.locator("code").text_content()
    choice.click()
    tab.page.locator("#why-body table").wait_for()
    [known] = debug(replica, f"selections?request_id={request_id}")["selections"]
    assert request_id in tab.text("#why-body .sentence")
    assert tab.page.locator("#why-body tr.chosen").get_attribute("data-candidate") == known["chosen"]
    assert len(known["candidates"]) == 3
    for candidate in known["candidates"]:
        shown = tab.page.locator(f"#why-body tr[data-candidate='{candidate['id']}']")
        for name, term in candidate["terms"].items():
            text = shown.locator(f"[data-term='{name}']").inner_text()
            assert math.isclose(number_in(text), term["value"], rel_tol=1e-3), (name, text, term)
            assert ("×" in text) is (term["weight"] != 1)
        assert abs(number_in(shown.locator("[data-term='score']").inner_text()) - candidate["score"]) < 1e-4
    assert tab.page.locator(".choice[aria-pressed='true']").count() == 1
    assert tab.errors == []


def test_any_request_can_be_asked_for_by_its_id(fleet, open_tab):
    """An id typed in, or in the address, is explained; one that nobody remembers is said to be so."""
    replica = fleet.replicas[0]
    chat(replica, "another question")
    newest = debug(replica, "selections?limit=1")["selections"][0]
    tab = open_tab(f"{replica.admin_url}/dashboard#{newest['request_id']}")
    until(lambda: f"went to {newest['chosen']}" in tab.text("#why-body"), "the address is explained")
    tab.page.fill("#request-id", "no-such-<b>request</b>")
    tab.page.keyboard.press("Enter")
    until(lambda: "does not remember no-such-<b>request</b>" in tab.text("#why-body"), "it is said")
    assert tab.errors == []


def test_it_fits_a_phone_and_the_dark(fleet, open_tab):
    """On a phone nothing scrolls sideways, an explanation included; in the dark the page is dark."""
    tab = open_dashboard(open_tab, fleet.replicas[0])
    tab.page.set_viewport_size(PHONE)
    tab.page.locator(".choice").first.click()
    tab.page.locator("#why-body table").wait_for()
    assert tab.overflow_px() <= 0
    back = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(back)
    tab.page.emulate_media(color_scheme="dark")
    assert tab.page.evaluate(back) != light
    assert tab.errors == []


def test_with_an_admin_key_the_page_asks_for_it(fleet, open_tab, tmp_path):
    """The page itself is open; its data come with the key, which the tab remembers; a wrong one is told."""
    (tmp_path / "key").write_text(KEY)
    replica = fleet.start_replica("--admin-key-file", str(tmp_path / "key"))
    fleet.replicas.remove(replica)  # whoever waits for all replicas has no key
    until(lambda: fetch(f"{replica.admin_url}/ready")[0] == 200, "it is ready")
    assert fetch(f"{replica.admin_url}/debug/replica")[0] == 401
    assert fetch(f"{replica.admin_url}/debug/history")[0] == 401
    tab = open_tab(f"{replica.admin_url}/dashboard")
    tab.page.fill("#key", "not the key at all")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_text("That is not the key.").wait_for()
    tab.page.fill("#key", KEY)
    tab.page.keyboard.press("Enter")
    row(tab, "i1").wait_for()
    tab.page.reload()
    row(tab, "i1").wait_for()
    assert not tab.page.locator("#key-dialog").is_visible()
    assert all("401" in error for error in tab.errors)


def test_a_killed_worker_turns_unknown(fleet, open_tab):
    """Within two TTLs its row and its picture say unknown: dashes, no zero, no green; the others stay as they are."""
    replica = fleet.replicas[0]
    tab = open_dashboard(open_tab, replica)
    until(lambda: "ready" in row(tab, "i3").inner_text(), "it is ready")
    green = row(tab, "i3").locator("td").nth(1).locator("span").evaluate("it => getComputedStyle(it).color")
    fleet.workers.pop("i3").kill()
    killed_s = time.monotonic()
    until(lambda: "unknown" in row(tab, "i3").inner_text(), "it is unknown", limit_s=2 * TTL_S)
    assert time.monotonic() - killed_s < 2 * TTL_S
    cells = row(tab, "i3").locator("td")
    colour = cells.nth(1).locator("span").evaluate("it => getComputedStyle(it).color")
    assert colour != green
    assert cells.nth(3).locator("span").inner_text() == "–"  # in flight
    assert cells.nth(10).locator("span").inner_text() == "–"  # backlog
    assert panel(tab, "i3").locator(".value").inner_text() == "–"
    assert panel(tab, "i3").locator(".silent").get_attribute("d").startswith("M")
    assert "2 of 3 instances ready" in tab.text("#headline")
    assert "i3" in tab.text("#problems")
    assert "ready" in row(tab, "i1").inner_text()
    tab.page.set_viewport_size(PHONE)
    assert tab.overflow_px() <= 0
    assert tab.errors == []


def test_a_replica_that_ends_leaves_an_old_page_that_says_so(fleet, open_tab):
    """When the replica is gone the page says since when, and does not pass off what it last heard as the present."""
    replica = fleet.start_replica()
    fleet.wait()
    tab = open_dashboard(open_tab, replica)
    fleet.replicas.remove(replica)
    replica.kill()
    until(lambda: "does not answer" in tab.text("#headline"), "it says so")
    assert "was true" in tab.text("#problems")
    assert "old" in tab.page.locator("body").get_attribute("class")
