"""The conformance suites detect wrong components.

Each file ``mutants_<kind>.py`` beside this one holds ``TestHealthy`` (and maybe others named ``TestHealthy…``),
which pass their suite, and at least four components with one realistic mistake each (``wrong`` says which):
every one of them must fail, and in the test that ``caught_by`` names, if it does. A third of the kinds is run; the record
of the others is of their sources (``test_records.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mutant_verdicts import DEADLINE_S, HEALTHY, RECORD, Outcome, classes, entry_of, node_ids, run
from turns import turn

HERE = Path(__file__).resolve().parent
ALL = sorted(HERE.glob("mutants_*.py"))
FILES = ALL[turn(3) :: 3]
"""Tests wait for files in the order in which these are begun."""
FEWEST = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 30)]


def selected(items: Iterable[Any]) -> list[Path]:
    """The files of the tests that pytest was asked for, in the order of :data:`FILES`."""
    specs = [spec for item in items if (spec := getattr(item, "callspec", None)) is not None]
    named = {spec.params["file"] for spec in specs if "file" in spec.params}
    return [file for file in FILES if file in named]


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[dict[str, Outcome]]]]:
    """The selected files, two at a time, since some mostly wait."""
    reports = tmp_path_factory.mktemp("mutants")
    items = [item for item in request.session.items if item.path == request.path]
    tests = {file: node_ids(file) for file in selected(items)}
    with ThreadPoolExecutor(2) as pool:
        yield {
            file: pool.submit(run, chosen, reports / f"{file.stem}.xml")
            for file, chosen in tests.items()
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_mutant_fails_and_the_healthy_passes(
    file: Path, running: dict[Path, Future[dict[str, Outcome]]]
) -> None:
    mutants = classes(file)
    sound = [name for name in mutants if name.startswith(HEALTHY)]
    assert HEALTHY in sound, f"{file.name} has no {HEALTHY}"
    for name in sound:
        mutants.pop(name)
    assert len(mutants) >= FEWEST, f"{file.name} has {len(mutants)} mutants; at least {FEWEST}"
    silent = [name for name, says in mutants.items() if not says.get("wrong")]
    assert not silent, f"{file.name}: say in `wrong` what is wrong with {silent}"

    outcomes = running[file].result(DEADLINE_S)

    for name in sound:
        healthy = outcomes[name]
        assert healthy.passed, f"{file.name}: {name} ran no test"
        assert not healthy.asserted, f"{file.name}: {name} fails {healthy.asserted}"
        assert not healthy.broken, f"{file.name}: {name} breaks {healthy.broken}"
    survivors = [
        f"{name} ({says['wrong']}): {len(outcomes[name].passed)} passed, errors {outcomes[name].broken}, "
        f"caught by {sorted(outcomes[name].asserted)}"
        for name, says in mutants.items()
        if not any(
            test.startswith(says.get("caught_by", "test_")) for test in outcomes[name].asserted
        )
    ]
    assert not survivors, f"{file.name}: the suite lets these pass:\n" + "\n".join(survivors)

    kind = file.stem.removeprefix("mutants_")
    record = json.loads(RECORD.read_text(encoding="utf-8"))[kind]
    seen = entry_of(file, outcomes)
    assert [mutant["name"] for mutant in record["mutants"] if mutant["caught_by"]] == [
        mutant["name"] for mutant in seen["mutants"]
    ], f"{RECORD.name} says something else: python scripts/mutant_verdicts.py {kind}"


def test_there_are_mutants() -> None:
    assert len(FILES) >= 2, f"no mutants_*.py in {HERE}"


def test_only_the_selected_kinds_run(request: pytest.FixtureRequest) -> None:
    first, second = FILES[:2]
    chosen = [
        SimpleNamespace(callspec=SimpleNamespace(params={"file": f})) for f in (second, first)
    ]
    assert selected([*chosen, request.node]) == [first, second]
    assert selected([request.node]) == []
