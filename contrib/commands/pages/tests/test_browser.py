"""The pages in a real Chromium: all states of runs, both themes, three widths, keyboard and screen readers."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect
from served_runs import Pages, serving, step_line, write_run
from stored_groups import store, store_many, tokenizer

from astraflow_runtime.cli import main
from astraflow_testing.runs import TABLE_RUN, User

expect.set_options(timeout=20_000)
pytestmark = [pytest.mark.backend, pytest.mark.timeout(300)]
HOSTILE = "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>"
EXPLORED = TABLE_RUN.replace('use = "digits"\n', 'use = "digits"\ndata = [{ use = "greso" }]\n', 1)
EVALUATED = f"""{EXPLORED}
[eval]
every = 10
sets.held_out = {{ use = "digits", digits = 2, size = 8, split = "held_out" }}
"""
TABS = (
    "",
    "/trajectories",
    "/pool",
    "/data",
    "/weights",
    "/config",
    "/plugins",
)
WIDTHS = {"light": (400, 3840, 1280), "dark": (1280,)}
"""Of windows in which each page is looked at; a theme changes no sizes."""
SHOTS = Path(__file__).parent / "shots"
"""Pictures are left here if the folder is there, for somebody to look at."""


class Visitor:
    """A user who is logged in, and the errors that the browser reports."""

    def __init__(self, pages: Pages, page: Page) -> None:
        self.pages, self.page, self.complaints = pages, page, list[str]()
        page.set_default_timeout(20_000)
        page.on(
            "console",
            lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "requestfailed",
            lambda r: self.complaints.append(r.url) if pages.origin not in r.url else None,
        )
        page.goto(pages.login_url())

    def go(self, place: str) -> Page:
        """Open a page and wait until it has all that it asks for."""
        self.page.goto(f"{self.pages.origin}/ui/#{place}")
        expect(self.page.locator("h1").first).to_be_visible()
        expect(self.page.get_by_text("loading…")).to_have_count(0)
        return self.page


@contextmanager
def visiting(browser: Browser, root: Path, **options: Any) -> Iterator[Visitor]:
    with serving(root, **options) as pages:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        try:
            yield Visitor(pages, context.new_page())
        finally:
            context.close()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[User, Path]]:
    """A folder with a run that goes on, one that failed and one that crashed, whose texts are hostile."""
    user = User(tmp_path_factory.mktemp("lived"))
    slowly = (
        'plugins.enable=["pages"]',
        "policies.solver.engine.token_s=0.15",
        "raas.replicas=2",
        "run.steps=100000",
    )
    user.start(*user.table_arguments(*slowly, config=EVALUATED))
    running = user.wait_for_steps(5, 120)
    model = tokenizer(user.directory / "model")
    failed = write_run(running.parent, "failed", 40, state="failed", seed=1, model=model)
    store(failed, HOSTILE, 40)
    summary = json.loads((failed / "summary.json").read_text())
    (failed / "summary.json").write_text(json.dumps({**summary, "error": HOSTILE}))
    crashed = write_run(running.parent, "crashed", 30, state="crashed", batch=64)
    with (crashed / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(step_line(31, **{HOSTILE: 1.0})) + "\n")
    yield user, running
    user.close()


@pytest.fixture(scope="module")
def someone(browser: Browser, lived: tuple[User, Path]) -> Iterator[Visitor]:
    with visiting(browser, lived[1].parent) as visitor:
        yield visitor


@pytest.fixture
def visitor(someone: Visitor) -> Visitor:
    someone.complaints.clear()
    return someone


def serious(page: Page, theme: str = "light") -> list[str]:
    """The serious and critical findings of axe-core; the themes differ only in colours."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if theme == "dark":
        options["runOnly"] = ["color-contrast"]
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes']][:3]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def picture(page: Page, name: str) -> None:
    if SHOTS.is_dir():
        page.screenshot(path=SHOTS / f"{name}.png")


def test_a_run_that_goes_on_is_live(visitor: Visitor, lived: tuple[User, Path]) -> None:
    page = visitor.go(f"/run/{lived[1].name}")
    steps = page.locator(".tile", has_text="steps").locator("dd")
    expect(page.locator(".live")).to_have_text("live")

    def made() -> int:
        return int(re.sub(r"\D", "", steps.inner_text().partition("/")[0]))

    before = made()
    expect(page.locator(".chart canvas").first).to_be_visible()
    page.wait_for_function(
        "n => parseInt(document.querySelector('.tile dd').innerText.replace(/,/g, '')) > n",
        arg=before,
    )
    assert made() > before
    for title in ("Reward", "Held-out accuracy", "Loss", "Staleness", "Speed"):
        expect(
            page.locator("figure", has_text=title).first.get_by_role("img")
        ).not_to_have_attribute("aria-label", re.compile("no value yet"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_and_can_be_used_by_all(
    visitor: Visitor, lived: tuple[User, Path], theme: Any
) -> None:
    page = visitor.page
    page.emulate_media(color_scheme=theme)
    backs = set()
    run = lived[1].name
    group = visitor.pages.ask(f"/ui/api/runs/{run}/data").json["groups"][-1]
    places = [
        "/",
        f"/compare?run={run}&run=failed&run=crashed",
        "/run/crashed",
        "/run/failed/trajectories",
        "/run/failed/trajectories?group=train-1",
        f"/run/{run}/explain?group={group}",
        *(f"/run/{run}{tab}" for tab in TABS),
    ]
    for number, place in enumerate(places):
        visitor.go(place)
        for width in WIDTHS[theme]:
            page.set_viewport_size({"width": width, "height": 900 if width < 3840 else 2000})
            page.evaluate(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            backs.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{place} is {wide} px wide at {width}"
            picture(page, f"{number}-{theme}-{width}")
        assert serious(page, theme) == [], place
    assert len(backs) == 1
    assert visitor.complaints == []


def test_texts_of_others_are_texts(visitor: Visitor) -> None:
    page = visitor.go("/")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    page = visitor.go("/run/failed")
    expect(page.get_by_role("alert").filter(has_text=HOSTILE)).to_be_visible()
    page = visitor.go("/run/crashed")
    page.get_by_label("another figure").select_option(HOSTILE)
    expect(page.locator("figcaption", has_text=HOSTILE)).to_be_visible()
    assert page.title() != "broken" and page.locator("main img").count() == 0
    assert visitor.complaints == []


def test_tokens_of_a_trajectory_are_shown(visitor: Visitor) -> None:
    page = visitor.go("/run/failed/trajectories")
    expect(page.get_by_text("9 of 9 that are stored")).to_be_visible()
    page.get_by_role("button", name="step>=10").click()
    expect(page.get_by_text("4 of 9 that are stored")).to_be_visible()
    picture(page, "trajectories")
    page.get_by_role("link", name="train-1 #0").click()
    expect(page.locator(".turn pre", has_text=HOSTILE).first).to_be_visible()
    expect(page.locator(".token-text .t").first).to_be_visible()
    page.get_by_label("side by side").check()
    assert page.locator(".episode").count() == 4
    colour = page.get_by_label("colour by")
    for look in ("version", "mask", "advantage", "gap", "entropy", "logprob"):
        colour.select_option(look)
        expect(page.locator(".token-text .t[class*=' ']").first).to_be_visible()
    page.locator(".token-text .t").last.click()
    expect(page.locator(".told")).to_contain_text(
        "log-prob -6, trainer -6.05, entropy 10, advantage 0.5, version 4"
    )
    picture(page, "group")
    page.get_by_label("as a table").check()
    expect(page.locator(".token-row").nth(1)).to_be_visible()
    assert serious(page) == [] and visitor.complaints == []
    visitor.go("/run/failed/trajectories?filter=nonsense")
    expect(page.get_by_role("alert")).to_contain_text("is not a term")


def test_the_dataflow_serves_the_pages_of_its_run(
    browser: Browser, lived: tuple[User, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--of", str(lived[1]), "--read-only"]) == 0
    (link,) = re.findall(r"http://\S+", capsys.readouterr().out)
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.get_by_role("link", name=lived[1].name).click()
    expect(page.locator(".live")).to_have_text("live")
    expect(page.locator(".chart canvas").first).to_be_visible()
    page.get_by_role("link", name="Services").click()
    expect(page.get_by_text("This login may look only")).to_be_visible()
    page.get_by_role("link", name="AstraFlow").click()
    expect(page.get_by_text("1 run in")).to_be_visible()
    context.close()


def test_a_data_policy_a_raas_and_the_run_obey(visitor: Visitor, lived: tuple[User, Path]) -> None:
    user, run = lived
    page = visitor.go(f"/run/{run.name}/pool")
    expect(page.locator("svg .map-name", has_text="raas-")).to_have_count(2)
    assert (
        page.locator("svg .map-good").count() == 2 + 2 * 2
    )  # trainer, dataflow, RaaS and their engines
    page.get_by_role("button", name="drain…").last.click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("No action has been taken")).to_be_visible()
    page.get_by_role("button", name="drain…").last.click()
    page.get_by_role("button", name="Drain", exact=True).click()
    actions = page.get_by_role("table", name="actions", exact=True)
    expect(actions.get_by_role("cell", name="done", exact=True)).to_be_visible()
    page.get_by_role("button", name="add RaaS…").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="add RaaS…").click()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="add: done")).to_be_visible()
    row = actions.get_by_role("row").filter(has_text="/v1/raas/add")
    expect(row).to_contain_text('{"count":1}')
    expect(row).to_contain_text("done")
    expect(page.locator("svg .map-name", has_text="raas-2")).to_be_visible(timeout=60_000)
    page.get_by_label("place").select_option("prompts")
    page.get_by_label("data policy").fill("none")
    page.get_by_label("table", exact=True).fill('{ use = "accept_all" }')
    page.get_by_role("button", name="swap…", exact=True).click()
    page.get_by_role("button", name="Swap", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("data policy").fill("greso")
    page.get_by_label("table", exact=True).fill('{ use = "greso", floor_hard = 0.5 }')
    page.get_by_role("button", name="swap…", exact=True).click()
    page.get_by_role("button", name="Swap", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="swap: done")).to_be_visible()
    answers: list[Any] = []

    def answered() -> bool:
        answers.append(visitor.pages.ask(f"/ui/api/runs/{run.name}/status").json)
        return bool(answers[-1]["live"])

    user.wait_for(answered, 60)
    swaps = answers[-1]["swaps"]
    assert [(s["table"]["use"], s["table"]["floor_hard"]) for s in swaps] == [("greso", 0.5)]
    before = (run / "metrics.jsonl").read_text().count('"step"')
    user.wait_for(lambda: (run / "metrics.jsonl").read_text().count('"step"') > before, 60)
    picture(page, "swapped")
    page.get_by_role("button", name="stop the run…").click()
    page.get_by_role("button", name="Stop the run", exact=True).click()
    user.wait_for(lambda: (run / "summary.json").exists(), 60)
    assert json.loads((run / "summary.json").read_text())["state"] == "stopped"
    visitor.go(f"/run/{run.name}")
    expect(page.locator(".state-stopped").first).to_be_visible()


def test_figures_of_a_real_run_agree_with_its_metrics(
    visitor: Visitor, lived: tuple[User, Path]
) -> None:
    """The figures that the pages compute from the journal, compared with the dataflow's other files."""
    run = lived[1]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step" in line]
    status = json.loads((run / "status.json").read_text())

    def asked(view: str) -> Any:
        return visitor.pages.ask(f"/ui/api/runs/{run.name}/{view}").json

    (cells,) = asked("staleness?buckets=400&last=400")["policies"].values()
    assert (cells["first"], cells["last"]) == (1, len(steps[:400]))  # a slow machine makes more
    for index, line in enumerate(steps[:400]):
        shown = {str(age): row[index] for age, row in enumerate(cells["counts"]) if row[index]}
        assert shown == line["staleness"]
    hours = asked("cost?buckets=4000")["hours"]
    x, y = hours["trainers"]
    assert x == [line["step"] for line in steps]
    passed = steps[-1]["time"] - steps[0]["time"]
    assert 3600 * (y[-1] - y[0]) == pytest.approx(passed, rel=0.05, abs=0.5)
    assert y[-1] < hours["RaaS"][1][-1] < 3 * y[-1] + 0.01
    (found,) = asked("data")["rewards"].values()
    (all_groups,) = found["sources"]
    assert all_groups["groups"] == sum(all_groups["all"]) == status["tasks"]["accepted"] + status["tasks"]["rejected"]  # fmt: skip
    page = visitor.go(f"/run/{run.name}")
    heading = page.get_by_role("heading", name="Staleness and cost")
    heading.scroll_into_view_if_needed()
    expect(page.locator("canvas.heat")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Cost: RaaS .* at"))).to_be_visible()
    page.locator("canvas.heat").hover()
    expect(page.locator(".legend", has_text=re.compile("steps? .* rows were"))).to_be_visible()
    page = visitor.go(f"/run/{run.name}/data")
    expect(page.get_by_role("img", name=re.compile("groups by mean reward: 0"))).to_be_visible()
    page.get_by_label("groups shown").select_option("newest")
    expect(page.locator(".bars")).to_be_visible()
    assert visitor.complaints == []


def test_an_empty_folder(browser: Browser, tmp_path: Path) -> None:
    with visiting(browser, tmp_path) as someone:
        page = someone.go("/")
        expect(page.get_by_text("No run is in")).to_be_visible()
        assert serious(page) == [] and someone.complaints == []


def test_two_hundred_runs_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    for number in range(200):
        write_run(tmp_path, f"run-{number:03d}", 2, seed=number)
    with visiting(browser, tmp_path) as someone:
        page = someone.go("/")
        expect(page.get_by_text("200 runs in")).to_be_visible()
        assert page.locator(".run-row").count() < 60
        page.get_by_role("button", name="run", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator(".run-row").nth(1)).to_contain_text("run-199")
        page.get_by_role("table", name="runs").focus()
        page.keyboard.press("End")
        expect(page.locator(".run-row").last).to_contain_text("run-000")
        page.get_by_role("searchbox").fill("seed=17")
        expect(page.get_by_text("of 200 runs")).to_be_visible()
        page.get_by_role("searchbox").fill("")
        for name in ("run-199", "run-198"):
            page.get_by_label(f"compare {name}").check()
        page.get_by_role("link", name="compare 2").click()
        expect(page.get_by_role("rowheader", name="run.seed")).to_be_visible()
        assert someone.complaints == []


def test_a_hundred_thousand_steps(browser: Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path, "long", 0)
    line = (
        json.dumps(step_line(77))
        .replace('"step": 77', '"step": %d')
        .replace('"reward": ', '"reward": %d')
    )
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(line % (step, step % 7) + "\n" for step in range(1, 100_001))
    with visiting(browser, tmp_path) as someone:
        page = someone.go("/run/long")
        began = time.monotonic()
        someone.go("/")
        someone.go("/run/long")
        expect(page.locator(".chart canvas").first).to_be_visible()
        assert time.monotonic() - began < 10
        box = page.locator(".chart .u-over").first.bounding_box()
        assert box is not None
        y = box["y"] + 50
        page.mouse.move(box["x"] + 20, y)
        page.mouse.down()
        page.mouse.move(box["x"] + 120, y, steps=4)
        page.mouse.up()
        page.get_by_role("button", name="show all steps").click()
        expect(page.get_by_text("drag over a chart")).to_be_visible()
        assert someone.complaints == []


@pytest.mark.slow
def test_ten_thousand_stored_rollouts_of_8k_tokens(browser: Browser, tmp_path: Path) -> None:
    """Lists, filters by the index, and each token of one, within seconds on a machine that is busy."""
    folder = write_run(tmp_path, "long", 3, model=tokenizer(tmp_path / "model"))
    store_many(folder, 1250, 8192)
    try:
        with visiting(browser, tmp_path) as someone:
            began = time.monotonic()
            page = someone.go("/run/long/trajectories")
            expect(page.get_by_text("2,000 newest of 10,000 that are stored")).to_be_visible()
            listed = time.monotonic()
            assert listed - began < 15 and page.locator(".roll-row").count() < 80
            page.get_by_role("searchbox").fill('text~"IT IS 3 7" group~train-12')
            page.get_by_role("button", name="filter", exact=True).click()
            expect(page.get_by_text("14 of 10,000 that are stored")).to_be_visible()
            listed = time.monotonic()
            page.get_by_role("searchbox").fill("reward>0 sampled>=8000 group=train-9")
            page.get_by_role("button", name="filter", exact=True).click()
            expect(page.get_by_text("2 of 10,000 that are stored")).to_be_visible()
            filtered = time.monotonic()
            assert filtered - listed < 15
            page.get_by_role("link", name="train-9 #0").click()
            expect(page.locator(".token-text .t").nth(1999)).to_be_attached()
            page.get_by_role("button", name="show more tokens").click()
            expect(page.locator(".token-text .t").nth(8191)).to_be_attached()
            assert time.monotonic() - filtered < 15
            colour = page.get_by_label("colour by")
            for look in ("version", "logprob"):
                colour.select_option(look)
                expect(page.locator(".token-text .t[class*=' ']").last).to_be_attached()
            page.get_by_label("as a table").check()
            expect(page.locator(".token-row").nth(1)).to_be_visible()
            assert page.locator(".token-row").count() < 120
            picture(page, "8k tokens")
            assert someone.complaints == []
    finally:
        shutil.rmtree(folder)


def test_an_expired_login_and_a_server_that_ended(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, "one", 3)
    later = [0.0]
    with visiting(browser, tmp_path, clock=lambda: time.time() + later[0]) as someone:
        page = someone.go("/")
        later[0] = 13 * 3600
        expect(page.get_by_role("alert")).to_contain_text("login has expired")
        page.goto(someone.pages.login_url())
        expect(page.get_by_role("link", name="one")).to_be_visible()
        someone.pages.stop()
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
