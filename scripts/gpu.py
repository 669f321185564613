"""Run everything that needs a GPU: every test marked ``gpu``, then ``bench.on_gpu``; and write a report to paste.

The report is ``bench/results/gpu/CARD.md``, the figures are in ``CARD.json`` beside it. All of it ends within `MINUTES`. The exit code is
0 if every test passed and every figure was measured, 2 where torch finds no CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "gpu"
MINUTES = 20.0
FIGURES_MINUTES = 5.0
"""Kept for the figures."""
INTERRUPTED_S = 20.0
MOST_WORKERS, CORES = 8, 2
MARK = "gpu"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Outcome:
    """How a test ended, and in a line why, if it did not pass."""

    test: str
    outcome: str
    why: str = ""


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="scripts/dev.py gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    parser.add_argument("tests", nargs="*", help="files or folders of tests (default: all)")
    asked = parser.parse_args(arguments)
    if not has_cuda():
        print(
            "torch finds no CUDA device here: `nvidia-smi` shows whether there is a driver, and "
            "`.venv/bin/python -c 'import torch; print(torch.version.cuda)'` whether torch is built for CUDA",
            file=sys.stderr,
        )
        return 2
    ends = time.monotonic() + 60 * MINUTES
    with tempfile.TemporaryDirectory(prefix="astraflow-gpu-") as scratch:
        folder = Path(scratch)
        in_time = called(
            ends - 60 * FIGURES_MINUTES,
            *("-m", "pytest", "-m", MARK, "-n", str(workers()), "-p", "no:cacheprovider"),
            *(f"--junitxml={folder / 'tests.xml'}", *(asked.tests or marked())),
        )
        outcomes = read_outcomes(folder / "tests.xml")
        quick = ("--quick",) if asked.quick else ()
        called(ends, "-m", "bench.on_gpu", f"--out={folder / 'figures.json'}", *quick)
        figures = read_figures(folder / "figures.json")
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = slug(str(figures.get("card", "unknown")))
    text = report(outcomes, figures, in_time)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(text)
    whole = in_time and figures and not figures["failed"]
    return 0 if whole and outcomes and all(o.outcome != FAILED for o in outcomes) else 1


def marked() -> list[str]:
    """The files with tests for a GPU: to read all the others takes minutes."""
    folders = ("core", "libs", "runtime", "testing", "plugins", "contrib", "tests")
    files = (file for folder in folders for file in (ROOT / folder).rglob("test_*.py"))
    return sorted(str(file) for file in files if f"mark.{MARK}" in file.read_text(encoding="utf-8"))


def workers() -> int:
    """How many processes run tests: each takes some memory of the card and up to `CORES` cores; 0 is this one."""
    many = min(MOST_WORKERS, len(os.sched_getaffinity(0)) // CORES)
    return many if many > 1 else 0


def has_cuda() -> bool:
    """Whether this interpreter's torch finds a device; asked in another process, for a context takes memory of the card."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def called(ends: float, *arguments: str) -> bool:
    """Run this interpreter in the checkout; whether it ended in time. One that did not is interrupted, so that pytest says what it
    knows, and killed with its processes if that does not end it."""
    # Where a shell runs this in the background, interrupts are ignored, and that would be inherited.
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        process.wait(max(1.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(INTERRUPTED_S)
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def read_outcomes(file: Path) -> list[Outcome]:
    """The outcomes in a JUnit file that our own pytest wrote; none if it was cut off."""
    if not file.exists():
        return []
    found = []
    for case in ElementTree.parse(file).iter("testcase"):
        test = f"{case.get('classname', '')}::{case.get('name', '')}"
        ended = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        if ended is None:
            found.append(Outcome(test, PASSED))
            continue
        why = (ended.get("message") or "").strip().split("\n")[0][:MOST_CHARACTERS]
        found.append(Outcome(test, SKIPPED if ended.tag == "skipped" else FAILED, why))
    return found


def read_figures(file: Path) -> dict[str, object]:
    """What ``bench.on_gpu`` wrote; empty if it was cut off."""
    if not file.exists():
        return {}
    figures: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    return figures


def report(outcomes: Sequence[Outcome], figures: dict[str, object], in_time: bool) -> str:
    """The report, as Markdown."""
    counted = Counter(outcome.outcome for outcome in outcomes)
    lines = [f"# {figures.get('card', 'unknown card')}", ""]
    lines += [f"{counted[name]} tests {name}" for name in (PASSED, FAILED, SKIPPED)]
    if not in_time:
        lines += ["", "**The tests did not end in time and were stopped.**"]
    for name in (FAILED, SKIPPED):
        told = [outcome for outcome in outcomes if outcome.outcome == name]
        if told:
            lines += ["", f"## {name.capitalize()}", ""]
            lines += [f"- `{outcome.test}`: {outcome.why}" for outcome in told]
    lines += ["", "## Figures", "", "| figure | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in figures.items() if name != "failed"]
    failed = figures.get("failed")
    if isinstance(failed, dict):
        lines += ["", *(f"- {name} was not measured: {why}" for name, why in failed.items())]
    elif not figures:
        lines += ["", "The figures were not measured in time."]
    return "\n".join(lines).rstrip() + "\n"


def slug(card: str) -> str:
    """A file's name for a card."""
    return "-".join("".join(c if c.isalnum() else " " for c in card.lower()).split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
