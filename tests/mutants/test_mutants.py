"""The conformance suites can tell right from wrong.

Each file ``mutants_<kind>.py`` beside this one holds ``TestHealthy`` (and maybe others named ``TestHealthy…``),
which pass their suite, and at least four components with one realistic mistake each (``wrong`` says which):
every one of them must fail, and in the test that ``caught_by`` names, if it does.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
FILES = sorted(HERE.glob("mutants_*.py"))
FEWEST = 4
DEADLINE_S = 480.0
HEALTHY = "TestHealthy"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 30)]


@dataclass
class Outcome:
    """What the tests of one class came to: names of tests, and messages of those that did not pass."""

    passed: list[str] = field(default_factory=list)
    asserted: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def classes(file: Path) -> dict[str, dict[str, str]]:
    """The test classes of a file with what each says of itself: ``wrong`` and ``caught_by``."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found[node.name] = {}
            for entry in node.body:
                if isinstance(entry, ast.Assign | ast.AnnAssign) and entry.value is not None:
                    targets = entry.targets if isinstance(entry, ast.Assign) else [entry.target]
                    name = ast.unparse(targets[0])
                    if name in ("wrong", "caught_by"):
                        found[node.name][name] = str(ast.literal_eval(entry.value))
    return found


def run(file: Path, report: Path) -> dict[str, Outcome]:
    """Run the file in a pytest of its own: class → outcome. Of a mutant whose test is named only that."""
    chosen = [
        "::".join([str(file), name, *filter(None, [says.get("caught_by")])])
        for name, says in classes(file).items()
    ]
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
            f"--junitxml={report}", *chosen,
        ],
        cwd=HERE.parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), f"pytest did not run:\n{done.stdout[-4000:]}{done.stderr}"
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = outcomes[case.attrib["classname"].rpartition(".")[2]]
        name = case.attrib["name"]
        failure, error = case.find("failure"), case.find("error")
        if failure is not None and is_assertion(failure.attrib["message"]):
            outcome.asserted[name] = failure.attrib["message"]
        elif failure is not None or error is not None:
            found = failure if failure is not None else error
            outcome.broken[name] = found.attrib["message"]
        elif case.find("skipped") is None:
            outcome.passed.append(name)
    return outcomes


def is_assertion(message: str) -> bool:
    """Whether a test judged what it saw; a crash or the test's own timeout is no judgement."""
    if message.startswith("Failed: Timeout"):
        return False
    return message.startswith(("AssertionError", "Failed", "assert "))


def selected(items: Iterable[Any]) -> list[Path]:
    """The files of the tests that pytest was asked for, the last by name first."""
    specs = [spec for item in items if (spec := getattr(item, "callspec", None)) is not None]
    return sorted({spec.params["file"] for spec in specs if "file" in spec.params}, reverse=True)


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[dict[str, Outcome]]]]:
    """The selected files, two at a time, since some mostly wait; the longest, which is the last by name, first."""
    reports = tmp_path_factory.mktemp("mutants")
    items = [item for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(2) as pool:
        yield {
            file: pool.submit(run, file, reports / f"{file.stem}.xml") for file in selected(items)
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


def test_there_are_mutants() -> None:
    assert FILES, f"no mutants_*.py in {HERE}"


def test_only_the_selected_kinds_run(request: pytest.FixtureRequest) -> None:
    engine, reward = HERE / "mutants_engine.py", HERE / "mutants_reward.py"
    chosen = [
        SimpleNamespace(callspec=SimpleNamespace(params={"file": f})) for f in (engine, reward)
    ]
    assert selected([*chosen, request.node]) == [reward, engine]
    assert selected([request.node]) == []
