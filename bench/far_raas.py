"""A model of 135 M parameters trained here and rolled out across 300 ms and 20 MB/s, while the run continues.

Dataflow and trainer are in one network namespace, a RaaS in another, each started by hand as on two hosts that
share no folder; the model is SmolLM2-135M in bfloat16 with its real updates, over the transport `delta`.

`publish_s`: what a publish takes from the trainer's loop, `publish_fraction` the same over the steps' time.
`refresh_s`: from the announcement of a version to its serving across the link, `refresh_full_s` for the first one,
which is whole; `link_s` what an idle link needs for the bytes of a version, and two round trips.
`busy_while_fetching`: the share of the time of refreshes in which the RaaS had episodes running;
`trainer_wait_fraction` what the trainer waited for batches, over the steps' time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from bench.quickstart import EXAMPLES
from bench.support.processes import TOKEN, end_of, started
from bench.support.slow_link import ADDRESSES, enter, possible

MEGABYTES_PER_S, ROUND_TRIP_MS = 20.0, 300.0
POLICY = "solver"
DELTA = f'{{ use = "delta", host = "{ADDRESSES[0]}" }}'
SMOLLM2 = (
    EXAMPLES / "smollm2.toml", "run.steps=10", "run.max_staleness=2", "eval.sets.held_out.size=8",
    "policies.solver.trainer.lr=5e-6",
)  # fmt: skip
SMALL = (EXAMPLES / "quickstart.toml", "run.steps=6", "eval.sets.held_out.size=8")
START_S, END_S, LOOK_S = 300.0, 3600.0, 0.1


@dataclass(frozen=True, slots=True)
class Look:
    """The status that one service reported at ``time``."""

    time: float
    status: dict[str, Any]


class Watch:
    """Polls the status of a service in its namespace until the service no longer replies."""

    def __init__(self, namespace: str, address: Path) -> None:
        self.looks: list[Look] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(namespace, address), daemon=True)
        self._thread.start()

    def _run(self, namespace: str, address: Path) -> None:
        enter(namespace)
        end = time.monotonic() + START_S
        while not address.exists() and time.monotonic() < end:
            time.sleep(LOOK_S)
        url = json.loads(address.read_text())["url"]
        request = Request(f"{url}/v1/status", headers={"Authorization": f"Bearer {TOKEN}"})
        while not self.ended.is_set():
            try:
                with urlopen(request, timeout=10) as answer:
                    status = json.load(answer)
            except OSError:
                if self.looks:  # it answered before, so it has ended
                    break
            else:
                self.looks.append(Look(time.monotonic(), status))
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Stop polling."""
        self.ended.set()
        self._thread.join(30)


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring; ``quick`` with the quickstart's model and three services the same."""
    if not possible():
        raise RuntimeError("far_raas needs root: it makes network namespaces and TUN devices")
    config, *overrides = SMALL if quick else SMOLLM2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        link = stack.enter_context(
            started("bench.support.slow_link", str(MEGABYTES_PER_S), str(ROUND_TRIP_MS))
        )
        near, far = link.url.split()
        here, there = folder / "near", folder / "far"
        (folder / "token").write_text(TOKEN)
        sets = [f"dataflow.host='{ADDRESSES[0]}'", f"policies.{POLICY}.transport={DELTA}"]
        common = ["--token-file", str(folder / "token")]
        for override in (*sets, *overrides):
            common += ["--set", override]

        def service(namespace: str, directory: Path, role: str, *arguments: str) -> Any:
            directory.mkdir(exist_ok=True)
            command = [sys.executable, "-m", "astraflow_runtime", role, str(config)]
            command += ["--directory", str(directory), *arguments, *common]
            process = subprocess.Popen(
                ["nsenter", f"--net={namespace}", *command],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
            stack.callback(end_of, process)
            return process

        dataflow = service(near, here, "dataflow")
        file = here / "dataflow.json"
        end = time.monotonic() + START_S
        while not file.exists():
            if dataflow.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the dataflow did not start (exit code {dataflow.poll()})")
            time.sleep(LOOK_S)
        url = ("--dataflow", json.loads(file.read_text())["url"])
        trainer = service(near, here, "trainer", "--policy", POLICY, *url)
        raas = service(far, there, "raas", "--name", "far", *url)
        near_watch = stack.enter_context(closing(Watch(near, file)))
        far_watch = stack.enter_context(closing(Watch(far, there / "state" / "far" / "raas.json")))
        for name, process in (("trainer", trainer), ("dataflow", dataflow), ("RaaS", raas)):
            if process.wait(END_S):
                raise RuntimeError(f"the {name} ended with {process.returncode}")
        return figures(here, near_watch.looks, far_watch.looks)


def figures(directory: Path, near: list[Look], far: list[Look]) -> dict[str, float]:
    """What the run recorded, and what was seen of it from outside."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step" in line]
    publishes = [line["metrics"]["publish_s"] for line in steps]
    announced = first_times(near, lambda status: status["policies"][POLICY]["version"])
    served = first_times(far, lambda status: status["serving"].get(POLICY))
    spans = {version: (announced[version], served[version]) for version in served}
    totals = far[-1].status["metrics"]
    received = [look.status["metrics"].get(f"{POLICY}/bytes_received", 0.0) for look in far]
    whole = next(value for value in received if value)
    swaps = totals[f"{POLICY}/swaps"]
    delta = (received[-1] - whole) / max(1.0, swaps - 1)
    link_s = delta / (MEGABYTES_PER_S * 1e6) + 2 * ROUND_TRIP_MS / 1000
    refreshes = [end - begin for version, (begin, end) in spans.items() if version]
    wall = steps[-1]["time"] - steps[0]["time"]
    return {
        "steps": len(steps),
        "versions_published": len(publishes) + 1,
        "versions_served": swaps,
        "whole_mb": whole / 1e6,
        "delta_mb": delta / 1e6,
        "step_s": wall / max(1, len(steps) - 1),
        "publish_s": statistics.median(publishes),
        "publish_most_s": max(publishes),
        "publish_fraction": sum(publishes[1:]) / wall,
        "refresh_full_s": spans[0][1] - spans[0][0],
        "refresh_s": statistics.median(refreshes),
        "refresh_most_s": max(refreshes),
        "link_s": link_s,
        "pause_s": totals[f"{POLICY}/pause_s"] / swaps,
        "busy_while_fetching": busy_within(far, [span for number, span in spans.items() if number]),
        "trainer_wait_fraction": sum(line["metrics"]["wait_s"] for line in steps[1:]) / wall,
        "max_staleness_seen": max(line["staleness_max"] for line in steps),
    }


def first_times(
    looks: list[Look], newest: Callable[[dict[str, Any]], int | None]
) -> dict[int, float]:
    """When each version, or a newer one, was first seen."""
    found: dict[int, float] = {}
    for look in looks:
        version = newest(look.status)
        for number in range(len(found), -1 if version is None else version + 1):
            found[number] = look.time
    return found


def busy_within(looks: list[Look], spans: list[tuple[float, float]]) -> float:
    """The share of the looks within ``spans`` at which episodes ran."""
    within = [
        look.status["episodes_running"] > 0
        for look in looks
        if any(begin <= look.time <= end for begin, end in spans)
    ]
    return statistics.fmean(within)
