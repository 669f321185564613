"""The pages about a run of 100,000 steps in a real Chromium: seconds to the first curve, milliseconds to answer a user.

`first_paint_s`: from opening the page of the run in a fresh server, which has not read the run before, until the first curve is
drawn, of a sample of the steps; `complete_s`: until those of all steps are. `again_s`: the first curve in that server later.
`interaction_p95_ms`: from the event of a zoom, or of the way back, until the next frame after all curves in sight are
drawn in the new range, measured in the page; `refined_p95_ms`: until the frame after they have all points that fit into that range.
`viewer_p95_ms`: from the event of a scroll in the list of 10,000 stored rollouts, or of another colour for all 8,192 tokens of one, until
the frame after it is painted. `first_cpu_s` and `interaction_cpu_ms`: CPU time of server, browser and driver for the same, which other load
on the machine changes less. `rollouts_s`: until that list is shown; `group_s`: one of them. `journal_first_s` and `journal_again_ms`: the
server's answer about the weights of a journal of 100,000 entries, first and later. `store_cpu_fraction` and `bytes_per_rollout`: what the
rollout store costs a quickstart, as `bench rollouts` measures it; a quick run leaves them out. `read_steps_per_s`: how fast the server reads
`metrics.jsonl`, beside `json_steps_per_s`, the standard library decoding the same lines. Medians, and the 95th percentile of all zooms,
scrolls and colours. `load`: how many processes wanted a core on average meanwhile; where that is more than there are cores, the seconds and
milliseconds are those of a busy machine. A quick run has 10,000 steps.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Any

import msgspec
import numpy as np
import psutil  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, sync_playwright

from astraflow_contrib_pages.metrics.metric_columns import MetricColumns
from astraflow_contrib_pages.runs_folder import RunsFolder
from astraflow_contrib_pages.serving import login_url, pages_app, pages_server
from astraflow_runtime.dataflow.journal.entries import Announced, Entry, Leased
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, encode_record
from astraflow_runtime.dataflow.journal_reader import FOLDER as JOURNAL_FOLDER
from astraflow_runtime.rollouts.building import line_of
from astraflow_runtime.rollouts.records import GroupRecord
from astraflow_runtime.rollouts.segments import FOLDER as ROLLOUT_FOLDER
from astraflow_runtime.rollouts.segments import LEVEL, Segment, encode
from astraflow_wire.http.browser_sessions import BrowserSessions
from astraflow_wire.messages import AnnouncementMessage
from bench import rollouts

STEPS, QUICK_STEPS, ROLLOUTS, TOKENS = 100_000, 10_000, 10_000, 8192
_STORE = ("store_cpu_fraction", "bytes_per_rollout")
_HOLE = b'"trajectories":[]'
"""Where the trajectories of a record go."""
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
DRAWN = "() => document.querySelectorAll('.chart canvas').length > 0"
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
        write_rollouts(run, ROLLOUTS // 10 if quick else ROLLOUTS)
        write_journal(run, steps)
        read, decoded = reading(run)
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        store = {} if quick else rollouts.store_cost(Path(folder) / "quickstart", 30)
        load = [os.getloadavg()[0]]
        visits: list[dict[str, Any]] = []
        for _ in range(2 if quick else 5):
            visits.append(_visit(browser, run, zooms))
            load.append(os.getloadavg()[0])
        browser.close()
    found = {name: statistics.median(visit[name] for visit in visits) for name in visits[0] if name not in ("zooms", "looks")}  # fmt: skip
    drawn, refined = ([each[part] for visit in visits for each in visit["zooms"]] for part in (0, 1))  # fmt: skip
    return {
        "steps": steps,
        **{name: round(value, 3) for name, value in found.items()},
        "interaction_p95_ms": _p95(drawn),
        "interaction_ms": round(statistics.median(drawn), 1),
        "refined_p95_ms": _p95(refined),
        "viewer_p95_ms": _p95([each for visit in visits for each in visit["looks"]]),
        **{name: store[name] for name in _STORE if store},
        "read_steps_per_s": round(steps / read),
        "json_steps_per_s": round(steps / decoded),
        "load": round(statistics.mean(load), 1),
    }


def _p95(values: list[float]) -> float:
    return round(sorted(values)[int(0.95 * (len(values) - 1))], 1)


def _visit(browser: Browser, run: Path, zooms: int) -> dict[str, Any]:
    """What somebody sees of the run in a fresh server."""
    with serving(run.parent) as link:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(link)
        start = page.url.partition("#")[0]
        place, began, cpu = f"{start}#/run/long", time.perf_counter(), _cpu_s()
        found: dict[str, Any] = {
            "first_paint_s": opened(page, place),
            "first_cpu_s": _cpu_s() - cpu,
        }
        page.wait_for_function(
            "() => !document.querySelector('.charts')?.parentElement.innerText.includes('A sample of')"
        )
        found["complete_s"] = time.perf_counter() - began
        page.goto(f"{start}#/")
        page.wait_for_selector(".run-row a")
        found["again_s"] = opened(page, place)
        page.wait_for_load_state("networkidle")
        cpu = _cpu_s()
        found["zooms"] = [zoomed(page, number) for number in range(zooms)]
        found["interaction_cpu_ms"] = 1000 * (_cpu_s() - cpu) / zooms
        found["rollouts_s"] = shown(page, f"{place}/trajectories", ".roll-row a")
        found["looks"] = [scrolled(page, number) for number in range(zooms // 2)]
        found["group_s"] = shown(page, f"{place}/trajectories?group=train-7", ".token-text .t")
        page.get_by_role("button", name="show more tokens").click()
        page.locator(".token-text .t").nth(TOKENS - 1).wait_for(state="attached")
        page.evaluate(TWO_FRAMES)
        found["looks"] += [coloured(page, number) for number in range(zooms // 2)]
        found["journal_first_s"] = asked(page, "api/runs/long/weights") / 1000
        found["journal_again_ms"] = asked(page, "api/runs/long/weights")
        page.close()
    return found


def _cpu_s() -> float:
    """CPU time of this process, which serves, and of all below it: the browser and what drives it."""
    own = psutil.Process()
    total = time.process_time()
    for child in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def write_rollouts(run: Path, count: int) -> None:
    """Groups of eight stored rollouts. The trajectories of one, compressed once, are those of all: to compress each would
    take minutes."""
    record = rollouts.record_of(0, rollouts.group_of(0, TOKENS, np.random.default_rng(0)))
    line, whole = line_of(record), encode(record)
    begin, end = _around(record)
    member = gzip.compress(whole[len(begin) : len(whole) - len(end)], LEVEL)
    folder, segment, offset = run / ROLLOUT_FOLDER, Segment("dataflow", 1), 0
    folder.mkdir()
    with segment.data(folder).open("wb") as data, segment.index(folder).open("wb") as index:
        for number in range(count // rollouts.GROUP):
            own = {
                "number": number,
                "group": f"train-{number}",
                "time_s": float(number),
                "first_trajectory": number * rollouts.GROUP,
            }
            begin, end = _around(msgspec.structs.replace(record, **own))
            size = data.write(
                gzip.compress(begin, LEVEL) + member + gzip.compress(end + b"\n", LEVEL)
            )
            placed = msgspec.structs.replace(line, **own, offset=offset, size=size)
            index.write(msgspec.json.encode(placed) + b"\n")
            offset += size


def _around(record: GroupRecord) -> list[bytes]:
    """What a record has before and after its trajectories."""
    return encode(msgspec.structs.replace(record, trajectories=[])).split(_HOLE)


def write_journal(run: Path, entries: int) -> None:
    """A journal of leases and versions."""
    (run / JOURNAL_FOLDER).mkdir()
    with (run / JOURNAL_FOLDER / ENTRIES).open("wb") as file:
        for number in range(entries):
            entry: Entry = Leased(task=f"train-{number}", raas="raas-0", capacity=8)
            if number % 20 == 0:
                version = AnnouncementMessage(
                    "solver", number // 20, "http", ["http://x"], "d" * 16, 1 << 20
                )
                entry = Announced(message=version)
            file.write(b"".join(encode_record(entry, number / 10)))


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


def shown(page: Page, place: str, selector: str) -> float:
    """Seconds until something of a page is there."""
    began = time.perf_counter()
    page.goto(place)
    page.wait_for_selector(selector)
    page.evaluate(TWO_FRAMES)
    return time.perf_counter() - began


def asked(page: Page, path: str) -> float:
    """Milliseconds until the server has answered."""
    asking = "async path => { const began = performance.now(); await (await fetch(path)).json(); return performance.now() - began; }"
    return float(page.evaluate(asking, path))


WATCH = """kind => {
  const plots = [...document.querySelectorAll('.plot')].filter((plot) => {
    const box = plot.getBoundingClientRect();
    return plot.dataset.range && box.top < innerHeight && box.bottom > 0;
  });
  const before = plots.map((plot) => plot.dataset.range);
  window.answered = new Promise((done) => window.addEventListener(kind, (event) => {
    let first = null;
    const look = () => {
      const since = performance.now() - event.timeStamp;
      if (plots.some((plot, index) => plot.dataset.range === before[index])) setTimeout(look, 1);
      else if (first === null) requestAnimationFrame(() => { first = performance.now() - event.timeStamp; look(); });
      else if (plots.some((plot) => plot.dataset.fine !== "true") && since < 20000) setTimeout(look, 1);
      else requestAnimationFrame(() => done([first, performance.now() - event.timeStamp]));
    };
    look();
  }, { capture: true, once: true }));
}"""
"""From an event of this kind until the next frame after all charts in sight have another range, and all points of it."""


def zoomed(page: Page, number: int) -> tuple[float, float]:
    """Milliseconds of one zoom, or of the way back: until it is drawn, and until it has all points."""
    if number % 2:
        page.evaluate(WATCH, "click")
        page.get_by_role("button", name="show all steps").click()
    else:
        box = page.locator(".chart .u-over").first.bounding_box()
        if box is None:
            raise RuntimeError("the page has no curve")
        page.mouse.move(box["x"] + 20 + number, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 150, box["y"] + 50, steps=3)
        page.evaluate(TWO_FRAMES)
        page.evaluate(WATCH, "mouseup")
        page.mouse.up()
    drawn, refined = page.evaluate("window.answered")
    return float(drawn), float(refined)


NEXT = """kind => { window.answered = new Promise((done) => window.addEventListener(kind, (event) => {
  const painted = new MessageChannel();
  painted.port1.onmessage = () => done(performance.now() - event.timeStamp);
  requestAnimationFrame(() => painted.port2.postMessage(null));
}, { capture: true, once: true })); }"""
"""From an event of this kind until the frame after it is painted."""


def scrolled(page: Page, number: int) -> float:
    """Milliseconds of one scroll in the list."""
    page.mouse.move(600, 500)
    page.evaluate(NEXT, "wheel")
    page.mouse.wheel(0, 700 + number)
    return float(page.evaluate("window.answered"))


def coloured(page: Page, number: int) -> float:
    """Milliseconds of another colour for all tokens."""
    page.evaluate(NEXT, "change")
    page.get_by_label("colour by").select_option(("version", "mask", "logprob")[number % 3])
    return float(page.evaluate("window.answered"))
