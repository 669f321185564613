"""Replies out of order: one sent before an action is not kept after it, slow ones are shown, no link is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from served_runs import serving, write_run

from astraflow_contrib_pages import routes
from astraflow_contrib_pages.running_run import RunningRun
from astraflow_contrib_pages.runs_folder import RunsFolder
from astraflow_core.errors import DeadlineExceeded, Refused

DEADLINE_S = 20.0
WEIGHTS = {"count": 0, "versions": [], "serving": [], "deltas": {}}
POOL = {"waits": [], "audit": [], "scope": "full"}


class Dataflow:
    """A client whose first answer waits; each answer says whether the action was already done."""

    def __init__(self) -> None:
        self.done = False
        self.asked, self.posted, self.go = threading.Event(), threading.Event(), threading.Event()

    def get_json(self, path: str, deadline_s: float) -> dict[str, bool]:
        """The state at the time of the call, returned when the test allows it."""
        answer = {"done": self.done}
        self.asked.set()
        assert self.go.wait(DEADLINE_S)
        return answer

    def post(self, *message: Any, deadline_s: float) -> None:
        """The action."""
        self.done = True
        self.posted.set()

    def close(self) -> None:
        """Nothing is open."""


def test_an_answer_of_before_an_action_is_not_given_after_it(tmp_path: Path) -> None:
    write_run(tmp_path, "one")
    dataflow = Dataflow()
    running = RunningRun(RunsFolder(tmp_path).run("one"), "a-token-of-this-run")
    running._client = lambda: dataflow  # type: ignore[method-assign, assignment, return-value]
    looking = threading.Thread(target=running.ask, args=("status",))
    acting = threading.Thread(target=running.act, args=("stop", {}, "somebody"))
    looking.start()
    assert dataflow.asked.wait(DEADLINE_S)
    acting.start()
    assert dataflow.posted.wait(DEADLINE_S)
    acting.join(0.2)  # time in which an act that does not wait for the answer would end
    dataflow.go.set()
    for thread in (looking, acting):
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert running.ask("status") == {"done": True}


def test_a_dataflow_that_is_late_is_waited_for_once_by_all(tmp_path: Path) -> None:
    write_run(tmp_path, "one")
    asked: list[str] = []

    class Late(Dataflow):
        def get_json(self, path: str, deadline_s: float) -> dict[str, bool]:
            asked.append(path)
            raise DeadlineExceeded("dataflow", "its answer", deadline_s)

    running = RunningRun(RunsFolder(tmp_path).run("one"), "a-token-of-this-run")
    running._client = Late  # type: ignore[method-assign, assignment]
    for _ in range(3):
        with pytest.raises(Refused, match="does not answer") as refused:
            running.ask("status")
        assert refused.value.status == 503
    assert asked == ["/v1/status"]
    with pytest.raises(Refused):
        running.ask("waits")
    assert len(asked) == 2


def test_a_view_that_hangs_gets_an_error_and_delays_no_other_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "one")
    go = threading.Event()
    monkeypatch.setattr(routes, "described", lambda run: [go.wait(DEADLINE_S)])
    monkeypatch.setattr(routes, "VIEW_S", 0.05)
    with serving(tmp_path) as pages:
        answer = pages.ask("/ui/api/runs/one/config")
        assert answer.status == 503 and "within 0.05 s" in answer.json["error"]
        monkeypatch.setattr(routes, "VIEW_S", DEADLINE_S)
        assert pages.ask("/ui/api/runs/one").status == 200
        go.set()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[[Callable[[Route], None]], Page]]:
    """Opens the services of a run in a browser whose time the test moves and whose requests for them it answers."""
    write_run(tmp_path, "one")
    with serving(tmp_path) as pages, browser.new_context() as context:

        def open_with(answer: Callable[[Route], None]) -> Page:
            page = context.new_page()
            page.clock.install()
            page.goto(pages.login_url())
            page.route("**/api/runs/one/pool", answer)
            page.goto(f"{pages.origin}/ui/#/run/one/pool")
            return page

        yield open_with


@pytest.mark.backend
def test_an_answer_slower_than_the_period_is_shown(
    opened: Callable[[Callable[[Route], None]], Page],
) -> None:
    held: list[Route] = []
    page = opened(lambda route: held.append(route))
    expect(page.get_by_text("loading…")).to_be_visible()
    page.clock.run_for(9_000)
    assert len(held) == 1
    held[0].fulfill(json={**POOL, "status": {"live": False}})
    expect(page.get_by_role("heading", name="Services")).to_be_visible()


@pytest.mark.backend
def test_a_form_stays_when_one_status_is_late(
    opened: Callable[[Callable[[Route], None]], Page],
) -> None:
    late: list[bool] = []

    def answer(route: Route) -> None:
        status = {"live": False, "trouble": "it is late"} if late else {"live": True}
        late.append(True)
        route.fulfill(json={**POOL, "status": status})

    page = opened(answer)
    page.get_by_label("data policy").fill("greso")
    page.clock.run_for(2_100)
    expect(page.get_by_role("alert")).to_have_text("it is late")
    expect(page.get_by_label("data policy")).to_have_value("greso")


@pytest.mark.backend
def test_waits_are_lines_of_the_map_with_the_numbers_of_the_table(
    opened: Callable[[Callable[[Route], None]], Page],
) -> None:
    policy = {"version": 3, "updates": 3, "trainer": "here", "buffered": 0}
    raas = [
        {"name": f"raas-{n}", "state": "alive", "ready": True, "serving": {"solver": 3}, "metrics": {}, "heard_s": 0.1, "running": 1}
        for n in range(2)
    ]  # fmt: skip
    pairs = [("trainer solver", "rollouts"), ("task train-3", "raas-0 or raas-1"), ("dataflow", "raas-1"), ("run", "raas-1")]  # fmt: skip
    waits = [
        {"who": who, "for_whom": whom, "what": f"reason {number}", "since_s": 3.0, "until_s": 9.0}
        for number, (who, whom) in enumerate(pairs)
    ]
    status = {"live": True, "state": "running", "policies": {"solver": policy}, "raas": raas}
    page = opened(lambda route: route.fulfill(json={**POOL, "status": status, "waits": waits}))
    lines = page.locator("svg g", has=page.locator(".map-number"))
    expect(lines).to_have_count(2)
    assert lines.locator("text").all_text_contents() == ["1", "3,4"]
    said = lines.nth(1).locator("title").text_content() or ""
    assert "dataflow waits 3.0 s for raas-1: reason 2" in said
    rows = page.get_by_role("table", name="waits").get_by_role("row")
    expect(rows.nth(3)).to_contain_text("3dataflowraas-1reason 2")


@pytest.mark.backend
def test_a_page_says_how_much_of_the_journal_is_read_and_asks_until_it_is(
    opened: Callable[[Callable[[Route], None]], Page],
) -> None:
    held: list[Route] = []
    page = opened(lambda route: route.fulfill(json={**POOL, "status": {"live": False}}))
    weights = "**/api/runs/one/weights"
    page.route(weights, lambda route: held.append(route))
    said = page.get_by_text("of it are read so far")

    def answer(share: float) -> None:
        while not held:  # the request is known before its route
            page.evaluate("0")
        held.pop().fulfill(json={**WEIGHTS, "share": share})

    with page.expect_request(weights):
        page.get_by_role("link", name="Weights").click()
    for share, text in ((0.25, "25.0 %"), (0.5, "50.0 %")):
        with page.expect_request(weights):  # the next one
            answer(share)
        expect(said).to_contain_text(text)
    answer(1)
    expect(said).to_have_count(0)
    expect(page.get_by_text("No version was announced yet")).to_be_visible()
    assert held == []


MOVED = """
const listen = window.addEventListener.bind(window);
window.addEventListener = (kind, ...rest) => {
  if (kind === "hashchange") history.replaceState(null, "", "#/run/one/pool");
  listen(kind, ...rest);
};
"""


@pytest.mark.backend
def test_a_link_followed_before_the_page_listens_is_followed(
    browser: Browser, tmp_path: Path
) -> None:
    write_run(tmp_path, "one")
    with serving(tmp_path) as pages, browser.new_context() as context:
        page = context.new_page()
        page.add_init_script(MOVED)
        page.goto(pages.login_url())
        expect(page.get_by_role("heading", name="Services")).to_be_visible()
