"""Three pools of different speed, two of them far away, against the same pools at one place: ``python -m bench.studies.regions``.

The counterpart of figures 7b to 7d of the AstraFlow paper. Three RaaS of 16 episodes at once decode at 100, 60 and 30 % of a speed. In ``far``
the second and the third are in network namespaces of their own, each behind a link of 300 ms round trip and 20 MB/s; dataflow,
trainer and the first RaaS are together. In ``local`` all are. The transport is `delta` over a version of 32 MB, of which each update
changes one value in a hundred by one bit; an update takes the trainer somewhat longer than the three pools need for a batch. Engine and trainer are
paced (:mod:`bench.support.paced`), the links are the kernel's TCP through delayed packets, all else is real. Needs root.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.far_raas import Look, Watch, first_times
from bench.studies.lines import Panel, picture
from bench.studies.records import RESULTS, Runs, read, write
from bench.studies.services import TASK, policy, recorded
from bench.support.processes import TOKEN, end_of, started
from bench.support.slow_link import ADDRESSES, possible

SPEEDS = {"full": 1.0, "sixty": 0.6, "thirty": 0.3}
MEGABYTES_PER_S, ROUND_TRIP_MS = 20.0, 300.0
BATCH, PLACES = 128, 16
TOKEN_S, SIGMA = 0.001, 0.7
BALLAST_MB = 32
START_S, END_S = 120.0, 900.0
POLICY = "solver"


@dataclass(frozen=True, slots=True)
class Pace:
    """``median`` tokens of an episode, ``step_s`` of the trainer, ``steps`` of a run and those of them that are a warm-up."""

    median: int
    step_s: float
    steps: int
    warm_up: int


PACES = {"": Pace(1500, 12.0, 16, 3), ", short episodes": Pace(400, 3.2, 40, 4)}
"""End of a run's name → its pace. The median of an episode at full speed is 1.5 and 0.4 s."""


def pace_of(run: dict[str, Any]) -> Pace:
    """The pace of a run that was recorded."""
    return next(PACES[end] for end in sorted(PACES, reverse=True) if run["name"].endswith(end))


def config(pace: Pace) -> str:
    """Of both runs, but for the speeds."""
    text = f"""
[run]
name = "study"
steps = {pace.steps}
group_size = 8
max_staleness = 2

{TASK}
[raas]
max_concurrent_episodes = {PLACES}

[balance]
every = 1

[eval]
every = 10
sets.held_out = {{ use = "digits", digits = 3, split = "held_out", size = 64 }}

[dataflow]
host = "{ADDRESSES[0]}"
"""
    tables = policy(
        POLICY,
        BATCH,
        f"token_s = {TOKEN_S}, median = {pace.median}, sigma = {SIGMA}",
        f"step_s = {pace.step_s}, lr = 600, ballast_mb = {BALLAST_MB}",
        "delta",
    )
    host = f'use = "delta", host = "{ADDRESSES[0]}"'
    return text + tables.replace('use = "delta"', host)


def ran(far: bool, pace: Pace) -> dict[str, Any]:
    """The run, with what was seen of the versions that each RaaS served."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="astraflow-study-")))
        (folder / "token").write_text(TOKEN)
        (folder / "job.toml").write_text(config(pace))
        link = (str(MEGABYTES_PER_S), str(ROUND_TRIP_MS))
        first = stack.enter_context(started("bench.support.slow_link", *link))
        near, there = first.url.split()
        other = stack.enter_context(started("bench.support.slow_link", *link, "1", near))
        places = [near, there, other.url.split()[1]] if far else [near] * 3

        def service(namespace: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
            directory = folder / name
            directory.mkdir(exist_ok=True)
            role, *rest = arguments
            command = [sys.executable, "-m", "astraflow_runtime", role, str(folder / "job.toml")]
            command += ["--directory", str(directory), *rest, "--token-file", str(folder / "token")]
            process = subprocess.Popen(
                ["nsenter", f"--net={namespace}", *command],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
            stack.callback(end_of, process)
            return process

        dataflow = service(near, "near", "dataflow")
        address = folder / "near" / "dataflow.json"
        end = time.monotonic() + START_S
        while not address.exists():
            if dataflow.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the dataflow did not start (exit code {dataflow.poll()})")
            time.sleep(0.1)
        url = ("--dataflow", json.loads(address.read_text())["url"])
        watches = {"dataflow": stack.enter_context(closing(Watch(near, address)))}
        processes = [dataflow, service(near, "near", "trainer", "--policy", POLICY, *url)]
        for (name, speed), place in zip(SPEEDS.items(), places, strict=True):
            slower = f"policies.{POLICY}.engine.token_s={TOKEN_S / speed:.6f}"
            processes.append(service(place, name, "raas", "--name", name, *url, "--set", slower))
            at = folder / name / "state" / name / "raas.json"
            watches[name] = stack.enter_context(closing(Watch(place, at)))
        for process in processes:
            if code := process.wait(END_S):
                raise RuntimeError(f"{process.args!r} ended with {code}")
        return recorded(folder / "near", summary=False) | seen(
            {name: watch.looks for name, watch in watches.items()}
        )


def seen(looks: dict[str, list[Look]]) -> dict[str, Any]:
    """Seconds from the announcement of each version until each RaaS served it, bytes that it received, and its pauses."""
    announced = first_times(looks["dataflow"], lambda status: status["policies"][POLICY]["version"])
    refreshes, bytes_received, pauses = {}, {}, {}
    for name in SPEEDS:
        served = first_times(looks[name], lambda status: status["serving"].get(POLICY))
        refreshes[name] = [
            round(served[version] - announced[version], 2)
            for version in served
            if version in announced
        ]
        totals = looks[name][-1].status["metrics"]
        bytes_received[name] = totals[f"{POLICY}/bytes_received"]
        pauses[name] = round(totals[f"{POLICY}/pause_s"], 3)
    return {"refreshes": refreshes, "bytes_received": bytes_received, "pauses": pauses}


def shares(run: dict[str, Any]) -> dict[str, float]:
    """Of all trained tokens after the warm-up, by RaaS."""
    made = dict.fromkeys(SPEEDS, 0)
    for each in run["balance"][pace_of(run).warm_up :]:
        for raas in each["raas"]:
            made[raas["name"]] += raas["tokens"]
    return {name: tokens / sum(made.values()) for name, tokens in made.items()}


def waiting(run: dict[str, Any]) -> float:
    """Share of the trainer's time after the warm-up."""
    steps = run["steps"][pace_of(run).warm_up - 1 :]
    return float(sum(step["wait_s"] for step in steps[1:]) / (steps[-1]["at"] - steps[0]["at"]))


def report(runs: Runs, folder: Path) -> None:
    """``table.md`` and ``curves.svg``."""
    lines = [
        "# Three pools, two of them far away",
        "",
        "`python -m bench.studies.regions`, after a warm-up. `refresh`: seconds from the announcement of a version until it is",
        "served, median and most; `whole`: the same of the first version.",
        "",
        "| run | pool | speed | share of the tokens | in proportion | refresh, s | most | whole, s | received, MB | paused, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    panels = []
    for run in runs:
        part = shares(run)
        for name, speed in SPEEDS.items():
            whole, later = run["refreshes"][name][0], run["refreshes"][name][pace_of(run).warm_up :]
            lines.append(
                f"| {run['name']} | {name} | {speed:.0%} | {part[name]:.1%} | {speed / sum(SPEEDS.values()):.1%} | "
                f"{statistics.median(later):.2f} | {max(later):.2f} | {whole:.1f} | {run['bytes_received'][name] / 1e6:.1f} | "
                f"{run['pauses'][name]:.2f} |"
            )
        made = {
            name: [
                (each["number"], sum(r["tokens_per_s"] for r in each["raas"] if r["name"] == name))
                for each in run["balance"]
            ]
            for name in SPEEDS
        }
        if run["name"] in ("far", "local"):
            panels.append(Panel(f"{run['name']}: trained tokens per second", "update", made))
    lines += ["", "| run | updates | wall, s | trainer waited | publish, median s | held-out accuracy, end | staleness, most |",
              "|---|---|---|---|---|---|---|"]  # fmt: skip
    for run in runs:
        steps = run["steps"]
        lines.append(
            f"| {run['name']} | {len(steps)} | {steps[-1]['at']:.0f} | {waiting(run):.1%} | "
            f"{statistics.median(step['publish_s'] for step in steps):.3f} | {run['evals'][-1]['accuracy']:.2f} | "
            f"{max(step['staleness'] for step in steps)} |"
        )
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    for run in runs:
        if run["name"] == "far":
            times = {name: list(enumerate(found)) for name, found in run["refreshes"].items()}
            panels.append(Panel("far: seconds until a version is served", "version", times))
    waits = {run["name"]: [(s["step"], s["wait_s"]) for s in run["steps"][1:]] for run in runs}
    panels.append(Panel("trainer waited, seconds", "update", waits))
    (folder / "curves.svg").write_text(picture(panels))


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    if not possible():
        raise RuntimeError("it makes network namespaces and TUN devices, which needs root")
    folder = RESULTS / "regions"
    folder.mkdir(parents=True, exist_ok=True)
    if "--quick" in arguments:
        print(json.dumps(ran(True, replace(PACES[""], median=100, step_s=1.0, steps=4, warm_up=1))))
        return 0
    runs = read(folder)
    for end, pace in () if "--report" in arguments else PACES.items():
        for name in ("far", "local"):
            if not any(run["name"] == name + end for run in runs):
                found = ran(name == "far", pace)
                runs.append({"name": name + end, "config": config(pace), **found})
                write(folder, runs)
    report(runs, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
