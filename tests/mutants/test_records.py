"""What is recorded of the mutants is of the suites and the mutants as they are."""

from __future__ import annotations

import json
from pathlib import Path

import mutant_verdicts
import pytest
from mutant_verdicts import MUTANTS, RECORD, classes, file_of, is_recorded

KINDS = sorted(file.stem.removeprefix("mutants_") for file in MUTANTS.glob("mutants_*.py"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_is_of_the_suite_and_its_mutants(kind: str) -> None:
    assert is_recorded(kind), (
        f"{RECORD.name} is of another suite or other mutants: python scripts/mutant_verdicts.py {kind}"
    )


@pytest.mark.parametrize("key", ["suite", "mutants_file"])
def test_a_record_of_another_source_is_found(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["reward"][key] = "0" * 64
    changed = tmp_path / "mutants.json"
    changed.write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(mutant_verdicts, "RECORD", changed)
    assert not is_recorded("reward")
    assert is_recorded("workflow")


def test_the_record_names_the_mutants_of_each_kind() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert sorted(record) == KINDS
    for kind in KINDS:
        said = {name: says["wrong"] for name, says in classes(file_of(kind)).items() if says}
        assert {m["name"]: m["wrong"] for m in record[kind]["mutants"]} == said, kind
