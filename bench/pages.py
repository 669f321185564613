"""The pages about a run of 100,000 steps in a real Chromium: seconds to the first curve, milliseconds to answer a user.

`first_paint_s`: from opening the page of the run in a fresh server, which has not read the run before, until the first curve is
drawn; `again_s`: the same in that server later. `interaction_p95_ms`: from a zoom, or the way back, until the next frame after the
curves of the new view are drawn. `read_steps_per_s`: how fast the server reads `metrics.jsonl`, beside `json_steps_per_s`, the
standard library decoding the same lines. Medians, and the 95th percentile of all zooms. A quick run has 10,000 steps.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

from playwright.sync_api import Page, sync_playwright

from astraflow_contrib_pages.metric_columns import MetricColumns
from astraflow_contrib_pages.runs_folder import RunsFolder
from astraflow_contrib_pages.serving import login_url, pages_app, pages_server
from astraflow_wire.http.browser_sessions import BrowserSessions

STEPS, QUICK_STEPS = 100_000, 10_000
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
DRAWN = "() => document.querySelectorAll('.chart canvas').length > 3"
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def measure(quick: bool) -> dict[str, float]:
    """Open, zoom and return."""
    program = which("chromium")
    if program is None:
        raise SystemExit("bench pages needs Debian's chromium: apt-get install chromium")
    steps, zooms = (QUICK_STEPS, 4) if quick else (STEPS, 20)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = Path(folder) / "long"
        write_run(run, steps)
        read, decoded = reading(run)
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        first, later, answered = [], [], list[float]()
        for _ in range(2 if quick else 5):
            with serving(Path(folder)) as link:
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(link)
                place = f"{page.url.partition('#')[0]}#/run/long"
                first.append(opened(page, place))
                page.goto(f"{page.url.partition('#')[0]}#/")
                page.wait_for_selector(".run-row a")
                later.append(opened(page, place))
                answered += [zoomed(page, number) for number in range(zooms)]
                page.close()
        browser.close()
    return {
        "steps": steps,
        "first_paint_s": round(statistics.median(first), 3),
        "again_s": round(statistics.median(later), 3),
        "interaction_p95_ms": round(1000 * sorted(answered)[int(0.95 * (len(answered) - 1))], 1),
        "interaction_ms": round(1000 * statistics.median(answered), 1),
        "read_steps_per_s": round(steps / read),
        "json_steps_per_s": round(steps / decoded),
    }


def write_run(run: Path, steps: int) -> None:
    """A run as a dataflow leaves it."""
    run.mkdir()
    (run / "config.toml").write_text("[run]\nsteps = 100000\nmax_staleness = 2\n")
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            line: dict[str, Any] = {
                "time": 1.7e9 + step, "policy": "solver", "step": step, "version": step, "reward": math.sin(step / 900),
                "reward_std": 0.3, "completion_length_mean": 180.5, "truncated_fraction": 0.1, "staleness_mean": step % 3,
                "staleness_max": step % 4, "tokens_generated": 9000 * step, "pass_rate": 0.5, "equal_groups_fraction": 0.1,
                "metrics": {"loss": 1 / step, "kl": 0.01, "entropy": 2.0, "grad_norm": 1.0, "wait_s": 0.1, "update_s": 0.9},
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")


def reading(run: Path) -> tuple[float, float]:
    """Seconds that the server and the standard library take for the file."""
    began = time.perf_counter()
    MetricColumns(run).update()
    read = time.perf_counter()
    for line in (run / "metrics.jsonl").read_bytes().splitlines():
        json.loads(line)
    return read - began, time.perf_counter() - read


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """A fresh server; the link that logs in."""
    sessions, loop = BrowserSessions("a benchmark"), asyncio.new_event_loop()
    server = pages_server(pages_app(RunsFolder(root), sessions, []), "127.0.0.1", 0, None, None)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
        yield login_url(server.url, "", sessions, "full")
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def opened(page: Page, place: str) -> float:
    """Seconds until the curves are there."""
    began = time.perf_counter()
    page.goto(place)
    page.wait_for_function(DRAWN)
    page.evaluate(TWO_FRAMES)
    return time.perf_counter() - began


def zoomed(page: Page, number: int) -> float:
    """Seconds of one zoom, or of the way back."""
    if number % 2:
        began = time.perf_counter()
        with page.expect_response("**/curves?*"):
            page.get_by_role("button", name="show all steps").click()
    else:
        box = page.locator(".chart .u-over").first.bounding_box()
        if box is None:
            raise RuntimeError("the page has no curve")
        page.mouse.move(box["x"] + 20 + number, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 150, box["y"] + 50, steps=3)
        began = time.perf_counter()
        with page.expect_response("**/curves?*"):
            page.mouse.up()
    page.evaluate(TWO_FRAMES)
    return time.perf_counter() - began
