"""Trackers with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.types import ComponentContext, RunInfo
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance


class Lines:
    """Writes a line of JSON for each call, beside the run."""

    def __init__(self, context: ComponentContext) -> None:
        self.own, self.directory = context.directory, context.run.directory
        self.held: list[dict[str, Any]] = []

    @property
    def file(self) -> Path:
        return self.directory / "record.jsonl"

    def write(self, **line: Any) -> None:
        self.held.append(line)
        if len(self.held) >= 16:
            self.flush()

    def flush(self) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.held)
        self.held = []

    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        self.write(config=config)
        return str(self.file)

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        self.write(step=step, values=dict(values))

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            self.write(row=[row["prompt"], row["completion"]])

    def spans(self, spans: Sequence[Mapping[str, Any]]) -> None:
        for span in spans:
            names = ("trace", "id", "parent", "name", "service", "start_s")
            self.write(span=[span[name] for name in names])

    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        self.write(ended=state, summary=dict(summary))
        self.flush()


class OfLines(TrackerConformance):
    """``Lines`` with ``mistake`` in its place."""

    mistake: ClassVar[Any] = Lines
    capabilities: ClassVar[frozenset[str]] = frozenset({"rollouts", "spans"})

    @pytest.fixture
    def component(self) -> Subject:
        return Subject({"lines": lambda context: self.mistake(context)}, self.capabilities)

    @pytest.fixture
    def read(self) -> Read:
        def recorded(context: ComponentContext) -> Recorded:
            directory = context.run.directory
            files = [directory / "record.jsonl", directory.parent / "record.jsonl"]
            lines = [
                json.loads(line)
                for file in files
                if file.exists()
                for line in file.read_text().splitlines()
            ]
            values: dict[str, list[tuple[int, float]]] = {}
            for line in lines:
                for name, value in line.get("values", {}).items():
                    values.setdefault(name, []).append((line["step"], value))
            return Recorded(
                values,
                "".join(json.dumps(line["config"]) for line in lines if "config" in line),
                [tuple(line["row"]) for line in lines if "row" in line],
                [tuple(line["span"]) for line in lines if "span" in line],
                any("ended" in line for line in lines),
            )

        return recorded


class TestHealthy(OfLines):
    pass


class Undone(Lines):
    rollouts: Any = None


class TestUndone(OfLines):
    wrong = "declares rollouts and has no method for them"
    caught_by = "test_its_methods_exist"
    mistake = Undone


class Silent(Lines):
    def started(self, run: RunInfo, config: Mapping[str, Any]) -> Any:
        super().started(run, config)


class TestSilent(OfLines):
    wrong = "says nothing of where the record is"
    caught_by = "test_started_returns_the_place_of_the_record"
    mistake = Silent


class OneStep(Lines):
    last = -1

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        if step >= self.last:  # as stores do that have one step for all
            self.last = step
            super().metrics(group, step, time_s, values)


class TestOneStep(OfLines):
    wrong = "takes one step for all groups, and drops what goes back"
    caught_by = "test_every_value_is_recorded_with_its_step"
    mistake = OneStep


class HalfPrecision(Lines):
    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        short = {
            name: struct.unpack("<f", struct.pack("<f", value))[0] // 1e-4 * 1e-4
            for name, value in values.items()
        }
        super().metrics(group, step, time_s, short)


class TestHalfPrecision(OfLines):
    wrong = "rounds to four decimals"
    caught_by = "test_every_value_is_recorded_with_its_step"
    mistake = HalfPrecision


class Holds(Lines):
    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        self.write(ended=state)


class TestHolds(OfLines):
    wrong = "writes when there is enough, and not at the end"
    caught_by = "test_the_last_values_are_recorded"
    mistake = Holds


class Overwrites(Lines):
    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        self.file.unlink(missing_ok=True)
        return super().started(run, config)


class TestOverwrites(OfLines):
    wrong = "begins the record again when a run is resumed"
    caught_by = "test_a_resumed_run_continues_its_record"
    mistake = Overwrites


class NeedsSummary(Lines):
    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        assert summary["steps"] is not None
        super().ended(state, summary, curves)


class TestNeedsSummary(OfLines):
    wrong = "needs a summary, which a killed launcher does not give"
    caught_by = "test_a_run_whose_launcher_was_killed_is_continued"
    mistake = NeedsSummary


class Shared(Lines):
    @property
    def file(self) -> Path:
        return self.directory.parent / "record.jsonl"


class TestShared(OfLines):
    wrong = "has one record for all runs"
    caught_by = "test_runs_have_records_of_their_own"
    mistake = Shared


class FlatConfig(Lines):
    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        plain = {k: v for k, v in config["run"].items() if isinstance(v, int | str)}
        return super().started(run, plain)


class TestFlatConfig(OfLines):
    wrong = "records the values of one table of the config only"
    caught_by = "test_the_config_is_recorded"
    mistake = FlatConfig


class Endless(Lines):
    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        self.flush()


class TestEndless(OfLines):
    wrong = "leaves a record that goes on for ever"
    caught_by = "test_the_end_is_recorded"
    mistake = Endless


class Beats(Lines):
    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        threading.Thread(target=threading.Event().wait, args=(15,), name="heartbeat").start()
        return super().started(run, config)


class TestBeats(OfLines):
    wrong = "leaves a thread behind that keeps its process"
    caught_by = "test_no_thread_or_process_is_left_running"
    mistake = Beats


class LastRow(Lines):
    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        super().rollouts(rows[:1])


class TestLastRow(OfLines):
    wrong = "records one row of each update"
    caught_by = "test_rows_of_rollouts_are_recorded"
    mistake = LastRow


class Ascii(Lines):
    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            text = row["prompt"].encode("ascii", "replace").decode()
            self.write(row=[text, row["completion"]])


class TestAscii(OfLines):
    wrong = "writes question marks for letters of other scripts"
    caught_by = "test_rows_of_rollouts_are_recorded"
    mistake = Ascii


class Orphans(Lines):
    def spans(self, spans: Sequence[Mapping[str, Any]]) -> None:
        super().spans([{**span, "parent": ""} for span in spans])


class TestOrphans(OfLines):
    wrong = "sends spans without their parents"
    caught_by = "test_spans_are_recorded"
    mistake = Orphans
