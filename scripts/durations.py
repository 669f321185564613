"""The costs of the tests in CPU seconds: recorded in tests/durations.json, with budgets for the light ones in CONTRIBUTING.md.

CPU time, of the processes that a test starts too, says the same beside other work; wall time does not.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "durations.json"
BUDGETS = ROOT / "CONTRIBUTING.md"
FILES, TESTS = "files", "tests"
LEAST = {FILES: 0.5, TESTS: 1.0}
LEAST_HEAVY = 2.0
"""What costs less is not listed."""
STEP = 0.5
OTHERS = "each other package"
SUM = "sum"

Record = dict[str, dict[str, float]]


def read() -> Record:
    """What is recorded."""
    record: Record = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def write(record: Record) -> None:
    """Record it, one line for each entry."""
    text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
    RECORD.write_text(text + "\n", encoding="utf-8")


def updated(
    old: Record, measured: Mapping[str, float], heavy: str = "", complete: bool = False
) -> Record:
    """``old`` with what was measured of each test (by node id), of those of the tier ``heavy`` only by file; files that did
    not run keep what they had, unless the tier ran ``complete``.

    A value that is about what it was stays, so that the record changes where the tests did.
    """
    ran = {_file(test) for test in measured}
    files: dict[str, float] = defaultdict(float)
    for test, spent in measured.items():
        files[_file(test)] += spent
    seconds = {heavy: files} if heavy else {FILES: files, TESTS: dict(measured)}
    new = dict(old)
    for kind in seconds:
        before = old.get(kind, {})
        kept = {
            k: v
            for k, v in before.items()
            if not complete and _file(k) not in ran and (ROOT / _file(k)).exists()
        }
        now = {k: _steady(before.get(k), v) for k, v in seconds[kind].items()}
        new[kind] = kept | {k: v for k, v in now.items() if v >= LEAST.get(kind, LEAST_HEAVY)}
    return new


def _file(test: str) -> str:
    return test.partition("::")[0]


def _steady(before: float | None, now: float) -> float:
    if before is not None and abs(now - before) <= max(STEP, before / 4):
        return before
    return round(now / STEP) * STEP


def budgets(text: str) -> dict[str, float]:
    """The budget table: folder → CPU seconds."""
    rows = re.findall(r"^\| (?:`([\w/]+)`|(each other package|sum)) \| (\d+) s \|", text, re.M)
    return {folder or word: float(seconds) for folder, word, seconds in rows}


def package(file: str) -> str:
    """The package that a test file belongs to."""
    place = file.partition("/tests/")[0]
    return "tests" if place == file else place


def sums(record: Record) -> dict[str, float]:
    """Package → recorded CPU seconds of its files."""
    found: dict[str, float] = defaultdict(float)
    for file, seconds in record[FILES].items():
        found[package(file)] += seconds
    return dict(found)


def excesses(record: Record, allowed: Mapping[str, float]) -> list[str]:
    """The packages that cost more than their budget, each with what to do."""
    spent = sums(record)
    spent[SUM] = sum(spent.values())
    return [
        f"{name}: {seconds:g} CPU seconds of tests are recorded, its budget in CONTRIBUTING.md is {limit:g}; "
        "make them cheaper (`python3 scripts/dev.py durations` lists the slowest) or mark them slow"
        for name, seconds in sorted(spent.items())
        if seconds > (limit := allowed.get(name, allowed[OTHERS]))
    ]


def report(record: Record, allowed: Mapping[str, float], longest: int = 20) -> Iterator[str]:
    """The slowest tests, and each package beside its budget, as lines."""
    yield f"The {longest} slowest tests, in CPU seconds:"
    for test, seconds in sorted(record[TESTS].items(), key=lambda item: -item[1])[:longest]:
        yield f"{seconds:7.1f}  {test}"
    yield ""
    yield "The files of each package (those of at least half a CPU second) beside its budget:"
    for name, seconds in sorted(sums(record).items(), key=lambda item: -item[1]):
        yield f"{seconds:7.1f} of {allowed.get(name, allowed[OTHERS]):4.0f}  {name}"
    yield f"{sum(record[FILES].values()):7.1f} of {allowed[SUM]:4.0f}  {SUM}"


def main() -> int:
    """Print the report, and the packages that exceed their budget."""
    record, allowed = read(), budgets(BUDGETS.read_text(encoding="utf-8"))
    print(*report(record, allowed), sep="\n")
    over = excesses(record, allowed)
    if over:
        print("", *over, sep="\n")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
