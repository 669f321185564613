"""Writing beside a service: nothing waits, what is lost is counted, and a redact sees each record first."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from stored_runs import batch_of, group_record

from astraflow_core.errors import UserError
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.rollouts.building import update_record
from astraflow_runtime.rollouts.reader import RolloutReader
from astraflow_runtime.rollouts.records import GroupRecord
from astraflow_runtime.rollouts.segments import FOLDER
from astraflow_runtime.rollouts.writer import WAITING, RolloutWriter, redaction
from astraflow_testing.runs import TABLE_RUN

BYTES = 1 << 24


def test_a_slow_disk_costs_records_and_no_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RolloutWriter(tmp_path / FOLDER, "dataflow", BYTES)
    released, begun = threading.Event(), threading.Event()

    def slow() -> GroupRecord:
        begun.set()
        assert released.wait(10)
        return group_record(0)

    writer.put(slow)
    assert begun.wait(10)
    for number in range(1, WAITING + 6):
        writer.put(lambda number=number: group_record(number))  # type: ignore[misc]
    assert writer.dropped == 5
    released.set()
    writer.close()
    reader = RolloutReader(tmp_path)
    assert len(reader.group_names) == WAITING + 1
    assert reader.dropped == 5
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert f"a rollout is not stored: {WAITING} wait to be written" in caplog.text


def test_a_record_is_redacted_or_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def redact(record: dict[str, Any]) -> dict[str, Any] | None:
        if record["number"] == 2:
            return None
        if record["number"] == 3:
            raise KeyError("secret")
        for trajectory in record["trajectories"]:
            for turn in trajectory["turns"]:
                turn["text"] = turn["text"].replace("two", "***")
            del trajectory["completions"]
        record["prompt_data"] = {}
        return record

    writer = RolloutWriter(tmp_path / FOLDER, "dataflow", BYTES, redact)
    groups = [group_record(number) for number in (1, 2, 3, 4)]
    for group in groups:
        writer.put(lambda group=group: group)  # type: ignore[misc]
    writer.put(lambda: update_record(batch_of(groups[:1], 1), range(2), 1, 0.0))
    writer.close()
    reader = RolloutReader(tmp_path)
    assert reader.group_names == ["train-1", "train-4"]
    loaded = reader.group("train-1")
    assert loaded.record.prompt_data == {}
    stored = loaded.trajectories[0].stored
    assert stored.turns is not None and stored.turns[1].text == "*** 0"
    assert stored.completions is None
    assert loaded.trajectories[0].trained[0], "tokens are as they were, so the update is found"
    for file in (tmp_path / FOLDER).glob("*index*"):
        assert b"two" not in file.read_bytes()
    assert writer.dropped == 1 and "KeyError: 'secret'" in caplog.text


def test_a_full_disk_costs_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).write_text("no folder")
    writer = RolloutWriter(tmp_path / FOLDER, "dataflow", BYTES)
    writer.put(lambda: group_record(1))
    writer.close()
    assert writer.dropped == 1 and str(tmp_path / FOLDER) in caplog.text


def test_a_redact_lies_beside_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "redact_for_this_test.py").write_text(
        "WORD = 1\ndef short(record): return record\n"
    )
    file = tmp_path / "run.toml"
    file.write_text(f'{TABLE_RUN}\n[rollouts]\nredact = "redact_for_this_test:short"\n')
    config = load_config(file).config
    found = redaction(config.rollouts.redact)
    assert found is not None and found({"a": 1}) == {"a": 1}
    with pytest.raises(
        UserError, match=r"\[rollouts\] redact = .* is an object of type int; expected a function"
    ):
        redaction("redact_for_this_test:WORD")
    with pytest.raises(
        UserError, match="has no attribute 'long'; name a function as 'module:function'"
    ):
        redaction("redact_for_this_test:long")
    assert redaction("") is None
