#!/usr/bin/env python3
"""Run conformance suites on their mutants, and record which test caught which.

`scripts/mutant_verdicts.py KIND …` rewrites their entries in testing/src/astraflow_testing/mutants.json; without KIND it
rewrites all. An entry belongs to one source of the suite and of its mutants. The slow tests run a third of the kinds, chosen
by the sources that they test, so that each commit has its own third.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workspace import ROOT

from astraflow_testing.suite_verdicts import source_digest

MUTANTS = ROOT / "tests" / "mutants"
RECORD = ROOT / "testing" / "src" / "astraflow_testing" / "mutants.json"
DEADLINE_S = 480.0
HEALTHY = "TestHealthy"


@dataclass
class Outcome:
    """What the tests of one class came to: names of tests, and messages of those that did not pass."""

    passed: list[str] = field(default_factory=list)
    asserted: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def file_of(kind: str) -> Path:
    """The file with the mutants of a kind."""
    return MUTANTS / f"mutants_{kind}.py"


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


def node_ids(file: Path) -> list[str]:
    """What pytest is asked to run of a file: of a mutant whose test is named only that. Not for threads: Python's parser
    fails in two at once."""
    return [
        "::".join([str(file), name, *filter(None, [says.get("caught_by")])])
        for name, says in classes(file).items()
    ]


def run(tests: list[str], report: Path) -> dict[str, Outcome]:
    """Run tests of a file with mutants in a pytest of its own: class → outcome."""
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
            f"--junitxml={report}", *tests,
        ],
        cwd=ROOT,
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
            assert found is not None
            outcome.broken[name] = found.attrib["message"]
        elif case.find("skipped") is None:
            outcome.passed.append(name)
    return outcomes


def is_assertion(message: str) -> bool:
    """Whether a test failed by an assertion; a crash or the test's own timeout is no verdict."""
    if message.startswith("Failed: Timeout"):
        return False
    return message.startswith(("AssertionError", "Failed", "assert "))


def digest_of(file: Path) -> str:
    """SHA-256 of a file with mutants and of the manifest that it imports: a new capability has to be shown."""
    digest = hashlib.sha256(file.read_bytes())
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(n.name == "manifest" for n in node.names):
            found = find_spec(f"{node.module}.manifest")
            assert found is not None and found.origin is not None, f"{file.name}: no {node.module}"
            digest.update(Path(found.origin).read_bytes())
    return digest.hexdigest()


def is_recorded(kind: str) -> bool:
    """Whether the record is of the suite of a kind and of its mutants as they are."""
    entry = json.loads(RECORD.read_text(encoding="utf-8")).get(kind, {})
    now = (source_digest(kind), digest_of(file_of(kind)))
    return (entry.get("suite"), entry.get("mutants_file")) == now


def entry_of(file: Path, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """What the record says of a suite."""
    mutants = []
    for name, says in classes(file).items():
        if not name.startswith(HEALTHY):
            expected = says.get("caught_by", "test_")
            caught = sorted(t for t in outcomes[name].asserted if t.startswith(expected))
            test = caught[0].partition("[")[0] if caught else ""
            mutants.append({"name": name, "wrong": says["wrong"], "caught_by": test})
    return {
        "suite": source_digest(file.stem.removeprefix("mutants_")),
        "mutants_file": digest_of(file),
        "mutants": mutants,
    }


def main(argv: list[str]) -> int:
    """Record the verdicts on the suites of these kinds."""
    kinds = argv or sorted(f.stem.removeprefix("mutants_") for f in MUTANTS.glob("mutants_*.py"))
    unknown = [kind for kind in kinds if not file_of(kind).is_file()]
    if unknown:
        print(f"there are no mutants of {', '.join(unknown)}", file=sys.stderr)
        return 2
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            entry = entry_of(
                file_of(kind), run(node_ids(file_of(kind)), Path(folder) / "report.xml")
            )
        record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
        record[kind] = entry
        text = json.dumps(dict(sorted(record.items())), indent=1, ensure_ascii=False)
        RECORD.write_text(f"{text}\n", encoding="utf-8")
        caught = sum(1 for mutant in entry["mutants"] if mutant["caught_by"])
        print(f"{kind}: {caught} of {len(entry['mutants'])} mutants caught", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
