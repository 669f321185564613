"""What trackers get of the files of a run."""

from __future__ import annotations

import json
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astraflow_core.config.models import TrackerTable
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Entry,
    Evicted,
    Judged,
    Leased,
    Overdue,
    PromptsConsumed,
    Pushed,
)
from astraflow_runtime.launch.tracking import trackers
from astraflow_runtime.launch.tracking.cursor import Cursor, read_cursor, write_cursor
from astraflow_runtime.launch.tracking.metrics_feed import MetricsFeed
from astraflow_runtime.launch.tracking.prompt_spans import PromptSpans
from astraflow_runtime.telemetry.traced_prompts import is_traced
from astraflow_trackers.process import TrackerFailed
from astraflow_trackers.records import SpanRecord
from astraflow_wire.groups import EpisodeSpan, GroupHeader
from astraflow_wire.messages import AcknowledgeBatch, AnnouncementMessage, NextBatch


def step(policy: str, number: int, **metrics: float) -> dict[str, Any]:
    rates = {"easy": {"mean": 0.5, "prompts": 2}}
    return {
        "time": 100.0 + number,
        "policy": policy,
        "step": number,
        "reward": 0.5,
        "again": False,
        "pass_rates": rates,
        "metrics": metrics,
    }


def write(folder: Path, *lines: dict[str, Any], end: str = "") -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + end)


def test_steps_and_evaluations_are_sent_as_they_come(tmp_path: Path) -> None:
    feed = MetricsFeed(tmp_path, {})
    assert feed.new(10) == []
    sets = {"held_out": {"avg": 0.25, "pass": 1.0, "mean_reward": None, "n": 4}}
    evaluation = {"time": 99.0, "eval": {"version": 0, "versions": {"a": 2, "b": 3}, "sets": sets}}
    half = json.dumps(step("a", 2))[:20]
    write(tmp_path, evaluation, step("a", 1, loss=float("nan"), lr=0.1), {"balance": 1}, end=half)
    told, first = feed.new(10)
    assert told == (
        "eval",
        5,
        99.0,
        {
            "eval/accuracy": 0.25,
            "eval/held_out/avg": 0.25,
            "eval/held_out/pass": 1.0,
            "eval/version/a": 2.0,
            "eval/version/b": 3.0,
        },
    )
    assert first[:3] == ("a", 1, 101.0)
    assert first.values == {"a/lr": 0.1, "a/reward": 0.5, "a/again": 0.0, "a/pass_rate/easy": 0.5}
    assert feed.new(10) == []
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(step("a", 2))[20:] + "\n{damaged\n")
    assert [s.step for s in feed.new(10)] == [2]


def test_a_step_is_sent_once_whatever_is_logged_again(tmp_path: Path) -> None:
    write(tmp_path, step("a", 1), step("a", 2), step("a", 1), step("a", 2), step("a", 3))
    assert [s.step for s in MetricsFeed(tmp_path, {}).new(10)] == [1, 2, 3]
    assert [s.step for s in MetricsFeed(tmp_path, {"a": 2}).new(10)] == [3]


def test_pieces_lose_nothing(tmp_path: Path) -> None:
    write(tmp_path, *(step("a", n) for n in range(1, 8)))
    feed = MetricsFeed(tmp_path, {})
    pieces = [[s.step for s in feed.new(3)] for _ in range(4)]
    assert pieces == [[1, 2, 3], [4, 5, 6], [7], []]


def test_a_cursor_is_kept_and_a_damaged_one_begins_again(tmp_path: Path) -> None:
    file = tmp_path / "state" / "cursor.json"
    write_cursor(file, Cursor({"a": 3}, {"a": 2}, 77, 8, 9))
    assert read_cursor(file) == Cursor({"a": 3}, {"a": 2}, 77, 8, 9)
    file.write_text("{")
    assert read_cursor(file) == Cursor()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_tracker_says_is_shown_without_secrets(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "http://u:S3CR@host/x?token=S3CR and S3CRET-of-options"

    class Process:
        stop = kill = close = lambda self: None

        def __init__(self, *given: Any) -> None: ...

        def start(self) -> None: ...

        def call(self, name: str, *given: Any) -> str:
            if fails:
                raise TrackerFailed(said)
            return said

    monkeypatch.setattr(trackers, "TrackerProcess", Process)
    monkeypatch.setattr(trackers, "_spec", lambda *given: {})
    table = TrackerTable.model_validate({"use": "any", "api_key": "S3CRET-of-options"})
    config = SimpleNamespace(model_dump=lambda mode: {})
    catalog = SimpleNamespace(flags=lambda *given: ())
    prepared: Any = SimpleNamespace(
        directory=tmp_path, catalog=catalog, config=config, environment={}
    )
    notices: deque[str] = deque()
    feed = trackers.TrackerFeed("one", table, prepared, notices)
    feed.finish({"state": "finished"}, killed=False)
    feed.thread.start()
    feed.thread.join(20)
    shown = [feed.report.place, feed.report.error, *notices]
    assert "S3CR" not in "".join(shown)
    assert feed.report.state == ("failed" if fails else "complete")
    assert any("http://***@host/x?token=*** and ***" in text for text in shown)


# --- spans -----------------------------------------------------------------------------------------


def pushed(task: str, judged: list[Judged], spans: list[EpisodeSpan]) -> Pushed:
    header = GroupHeader(
        raas="r", task=task, prompt_id="p", sequences=[], trajectories=0, spans=spans
    )
    return Pushed(header=header, trained=[], accepted=True, judged=judged)


def announced(version: int) -> Announced:
    message = AnnouncementMessage(
        policy="a", version=version, transport="t", endpoints={}, digest="d", size=1
    )
    return Announced(message=message)


def acknowledged(batch: str, version: int, **metrics: float) -> Acknowledged:
    message = AcknowledgeBatch(policy="a", batch=batch, version=version, metrics=metrics)
    return Acknowledged(
        message=message, tokens_generated=0, generated={}, first_asked=None, waited_s=0
    )


def asked(batch: str, arrivals: list[int], dropped: list[int] | None = None) -> BatchRequested:
    message = NextBatch(policy="a", version=0, wait_s=1.0)
    return BatchRequested(message=message, batch=batch, arrivals=arrivals, dropped=dropped or [])


def heard(*entries: tuple[float, Entry], share: float = 1.0) -> list[list[SpanRecord]]:
    spans = PromptSpans("run", share)
    for at_s, entry in entries:
        spans.on_entry(at_s, entry)
    return spans.finished


def tree(spans: list[SpanRecord]) -> list[tuple[str, str, str, float, float]]:
    """(name, parent's name, service, from, to) of each."""
    names = {span["id"]: span["name"] for span in spans} | {"": ""}
    return [(s["name"], names[s["parent"]], s["service"], s["start_s"], s["end_s"]) for s in spans]


def test_a_prompt_that_two_batches_train_on_is_one_tree() -> None:
    episodes = [
        EpisodeSpan("generate", 0, "a", 4.0, 2.0),
        EpisodeSpan("reward", 0, "", 2.0, 1.0),
        EpisodeSpan("episode", 0, "", 4.0, 3.0),
    ]
    (trace,) = heard(
        (1.0, PromptsConsumed(cursor=1, task="train-0", prompt="p")),
        (2.0, Leased(task="train-0", raas="q", capacity=1)),
        (3.0, Overdue(task="train-0", reason="silent")),
        (4.0, Leased(task="train-0", raas="r", capacity=1)),
        (9.0, pushed("train-0", [Judged("a", "", "", 5, [0, 1])], episodes)),
        (10.0, asked("b0", [5])),
        (12.0, announced(1)),
        (13.0, acknowledged("b0", 1, update_s=1.0, publish_s=0.5)),
        (14.0, asked("b1", [6])),
        (16.0, acknowledged("b1", 1)),
    )
    assert tree(trace) == [
        ("prompt", "", "dataflow", 1.0, 16.0),
        ("lease", "prompt", "dataflow", 2.0, 3.0),
        ("lease", "prompt", "dataflow", 4.0, 9.0),
        ("generate", "episode", "engine-a", 5.0, 7.0),
        ("reward", "episode", "r", 7.0, 8.0),
        ("episode", "lease", "r", 5.0, 8.0),
        ("accept", "prompt", "dataflow", 9.0, 9.0),
        ("buffer", "prompt", "dataflow", 9.0, 10.0),
        ("train", "prompt", "trainer-a", 10.0, 13.0),
        ("publish", "train", "trainer-a", 11.5, 12.0),
        ("update", "train", "trainer-a", 10.5, 11.5),
        ("buffer", "prompt", "dataflow", 9.0, 14.0),
        ("train", "prompt", "trainer-a", 14.0, 16.0),
        ("update", "train", "trainer-a", 14.0, 16.0),
    ]
    assert [span["error"] for span in trace[:3]] == ["", "silent", ""]
    assert len({span["id"] for span in trace}) == len(trace)
    assert len({span["trace"] for span in trace}) == 1 and len(trace[0]["trace"]) == 32


@pytest.mark.parametrize(
    "end",
    [
        (9.0, pushed("train-0", [Judged("a", "filter", "too easy", 0, [])], [])),
        (9.0, Evicted(policy="a", arrivals=[5])),
        (9.0, asked("b", [], dropped=[5])),
    ],
    ids=["rejected", "evicted", "stale"],
)
def test_a_prompt_that_no_one_trains_on_ends_too(end: tuple[float, Entry]) -> None:
    entries: list[tuple[float, Entry]] = [
        (1.0, PromptsConsumed(cursor=1, task="train-0", prompt="p")),
        (2.0, Leased(task="train-0", raas="r", capacity=1)),
    ]
    if not isinstance(end[1], Pushed):
        entries.append((3.0, pushed("train-0", [Judged("a", "", "", 5, [0])], [])))
    assert heard(*entries) == []
    (trace,) = heard(*entries, end)
    assert trace[0]["name"] == "prompt" and trace[0]["end_s"] == 9.0


def test_a_share_of_the_prompts_is_traced_and_a_smaller_one_is_part_of_it() -> None:
    tasks = [f"train-{n}" for n in range(20000)]
    some = {task for task in tasks if is_traced(task, 0.1)}
    fewer = {task for task in tasks if is_traced(task, 0.02)}
    assert fewer < some and 1800 < len(some) < 2200 and 300 < len(fewer) < 500
    assert all(is_traced(task, 1.0) for task in tasks)
    assert not any(is_traced(task, 0.0) for task in tasks) and not is_traced("eval-a-1", 1.0)
    entries = [
        (0.0, PromptsConsumed(cursor=n, task=f"train-{n}", prompt=str(n))) for n in range(200)
    ]
    ends = [(1.0, pushed(f"train-{n}", [], [])) for n in range(200)]
    found = Counter(
        t[0]["attributes"]["astraflow.group"] for t in heard(*entries, *ends, share=0.1)
    )
    assert found == Counter(task for task in tasks[:200] if task in some)
