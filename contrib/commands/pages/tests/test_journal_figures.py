"""Figures of the pages beside those computed in another way: from lists, from metrics of a real run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from served_runs import serving, step_line, write_run
from test_journal_index import a_run, write

from astraflow_contrib_pages.journal.journal_figures import HeldLeases, MeanRewards, ServiceHours
from astraflow_contrib_pages.journal.journal_views import JournalViews
from astraflow_contrib_pages.metrics.metric_columns import MetricColumns
from astraflow_contrib_pages.metrics.staleness_map import MOST_ROWS
from astraflow_core.types import Group, Sequence, Trajectory
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Entry,
    Leased,
    Pushed,
    RaasGone,
    RaasRegistration,
    Resumed,
    TrainerRegistration,
)
from astraflow_wire.groups import GroupHeader, ReceivedGroup, encode_group
from astraflow_wire.messages import AcknowledgeBatch, RegisterRaas, RegisterTrainer

EVERYTHING = (float("-inf"), float("inf"))


def test_staleness_of_rows_is_counted_by_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "one", 0)
    chance = np.random.default_rng(0)
    rows = chance.integers(0, 5, (37, 8))
    with (folder / "metrics.jsonl").open("w") as file:
        for step, versions in enumerate(rows, 1):
            found = {str(v): int((versions == v).sum()) for v in set(versions.tolist())}
            file.write(json.dumps(step_line(step, staleness=found)) + "\n")
        file.write(json.dumps(step_line(38, staleness={"x": 3, "-1": 2, "1": "many"})) + "\n")
    columns = MetricColumns(folder)
    columns.update()
    (cells,) = columns.staleness(10, *EVERYTHING).values()
    assert (cells["first"], cells["last"], cells["width"], cells["more"]) == (1, 37, 4, False)
    for column in range(10):
        part = rows[4 * column : 4 * column + 4]
        assert [row[column] for row in cells["counts"]] == [int((part == v).sum()) for v in range(5)]  # fmt: skip
    (near,) = columns.staleness(10, 5, 7).values()
    assert np.array(near["counts"]).sum(0).tolist() == [8, 8, 8] and near["first"] == 5


def test_the_staleness_of_a_run_that_went_wild_fits_into_a_map(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "one", 0)
    lines = [step_line(n, staleness={"0": 1, str(10**n): 2}) for n in range(1, 9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = MetricColumns(folder)
    columns.update()
    (cells,) = columns.staleness(100, *EVERYTHING).values()
    assert cells["more"] and len(cells["counts"]) == MOST_ROWS
    assert cells["counts"][-1] == [0, 2, 2, 2, 2, 2, 2, 2] and cells["counts"][10][0] == 2


def test_deltas_belong_to_the_versions_of_their_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "one", 0)
    lines = [step_line(n, version=n // 2, metrics={"delta_bytes": 10.0 * n} if n % 2 == 0 else {}) for n in range(1, 9)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = MetricColumns(folder)
    columns.update()
    names = ("delta_bytes", "delta_density")
    assert columns.of_versions(names, 100) == {"solver": {n: {"delta_bytes": 20.0 * n} for n in range(1, 5)}}  # fmt: skip
    assert columns.of_versions(names, 3) == {"solver": {n: {"delta_bytes": 20.0 * n} for n in (3, 4)}}  # fmt: skip


def pushed(task: str, prompt: str, rewards: list[float], eval_set: str = "") -> Pushed:
    ones = np.array([0, 1, 1])
    sequence = Sequence("solver", ones.astype(np.int32), ones.astype(bool), -ones.astype(np.float32), ones.astype(np.int32) - 1)  # fmt: skip
    each = tuple(Trajectory((sequence,), (), {"solver": reward}) for reward in rewards)
    header: GroupHeader = ReceivedGroup(encode_group(Group(task, prompt, each), "r0")).header
    if eval_set:
        from msgspec.structs import replace

        header = replace(header, eval_set=eval_set)
    return Pushed(header=header, trained=[3] * len(rewards), accepted=True)


def test_mean_rewards_of_groups_are_counted_by_source() -> None:
    chance = np.random.default_rng(1)
    figures, means = MeanRewards(["easy", "hard"]), {"easy": [], "hard": [], "": []}  # type: ignore[var-annotated]
    for number in range(700):
        source = ("easy", "hard", "")[number % 3]
        rewards = chance.integers(0, 2, 4).astype(float).tolist()
        means[source].append(np.mean(rewards))
        prompt = f"{source}/p{number}" if source else f"strange/{number}"
        figures.on_entry(0.0, pushed(f"train-{number}", prompt, rewards))
    figures.on_entry(0.0, pushed("eval-1", "easy/p", [1.0], eval_set="held_out"))
    found = figures.histograms()["solver"]
    assert found["edges"][0] == 0 and found["edges"][-1] == 1 and len(found["edges"]) == 21
    by_source = {each["source"]: each for each in found["sources"]}
    assert by_source.keys() == means.keys()
    for source, given in means.items():
        own = by_source[source]
        assert own["groups"] == sum(own["all"]) == len(given)
        assert own["mean"] == pytest.approx(np.mean(given))
        # Of four rewards of 0 or 1 the mean is 0, 1/4, 1/2, 3/4 or 1: the bars 0, 5, 10, 15 and 19.
        for mean, bar in ((0.0, 0), (0.25, 5), (0.5, 10), (0.75, 15), (1.0, 19)):
            assert own["all"][bar] == given.count(mean)
    assert sum(sum(each["newest"]) for each in found["sources"]) == 500


def test_rewards_outside_of_0_to_1_have_bars_of_their_own() -> None:
    figures = MeanRewards()
    figures.on_entry(0.0, pushed("train-1", "p", [-3.0, -3.0]))
    found = figures.histograms()["solver"]
    assert (found["edges"][0], found["edges"][-1]) == (-3.5, -2.5)
    figures.on_entry(0.0, pushed("train-2", "p", [5.0]))
    found = figures.histograms()["solver"]
    assert (found["edges"][0], found["edges"][-1]) == (-3.0, 5.0)
    assert (found["sources"][0]["all"][0], found["sources"][0]["all"][-1]) == (1, 1)


def acknowledged(step: int) -> Acknowledged:
    message = AcknowledgeBatch(policy="solver", batch=f"solver-{step - 1:06d}", version=step, metrics={})  # fmt: skip
    return Acknowledged(message=message, tokens_generated=1.0, generated={}, first_asked=0.0, waited_s=0.0)  # fmt: skip


def came(raas: str) -> RaasRegistration:
    message = RegisterRaas(raas=raas, pid=1, host="h", policies=["solver"], capacity=4)
    return RaasRegistration(message=message)


def test_hours_of_services_are_those_between_coming_and_going() -> None:
    trainer = TrainerRegistration(message=RegisterTrainer(policy="solver", pid=1, host="h"))
    story: list[tuple[float, Entry]] = [
        (0, trainer), (60, came("r0")), (120, came("r1")), (180, acknowledged(1)),
        (240, RaasGone(raas="r0", reason="silent")), (300, came("r1")), (360, acknowledged(2)),
        (400, acknowledged(2)), (1000, Resumed()), (1060, trainer), (1060, came("r2")), (1120, acknowledged(3)),
    ]  # fmt: skip
    hours = ServiceHours()
    assert hours.arrays() == {}
    for at_s, entry in story:
        hours.on_entry(at_s, entry)
    found = {kind: (x.tolist(), (3600 * y).round(6).tolist()) for kind, (x, y) in hours.arrays().items()}  # fmt: skip
    # r0 60-240, r1 120-400 (then the run is dead until it is resumed), r2 1060-1120; the trainer 0-400 and 1060-1120.
    assert found["RaaS"] == ([1, 2, 3], [120 + 60, 180 + 240, 180 + 280 + 60])
    assert found["trainers"] == ([1, 2, 3], [180, 360, 400 + 60])


def test_without_a_journal_the_cost_is_not_known(tmp_path: Path) -> None:
    write_run(tmp_path, "one", 3)
    with serving(tmp_path) as pages:
        answer = pages.ask("/ui/api/runs/one/cost")
    assert answer.status == 200 and answer.json["hours"] == {}
    assert "has no journal" in answer.json["said"]


def test_leases_are_listed_with_their_age() -> None:
    leases = HeldLeases()
    for at_s, task in ((10, "train-1"), (20, "train-2"), (25, "train-3")):
        leases.on_entry(at_s, Leased(task=task, raas="r0", capacity=4))
    leases.on_entry(28, Leased(task="train-2", raas="r1", capacity=4, second=True))
    leases.on_entry(30, pushed("train-1", "p", [1.0]))
    found = leases.listed(5.0)
    assert found["count"] == 3
    told = [(each["task"], each["raas"], each["age_s"], each["second"]) for each in found["oldest"]]
    assert told == [("train-2", "r0", 15, False), ("train-3", "r0", 10, False), ("train-2", "r1", 7, True)]  # fmt: skip


def test_the_views_follow_a_journal(tmp_path: Path) -> None:
    entries = [came("r0"), *a_run(60)]
    write(tmp_path, entries)
    views = JournalViews(tmp_path)
    pushes = sum(isinstance(entry, Pushed) for entry in entries)
    assert views.funnel()["rewards"]["solver"]["sources"][0]["groups"] == pushes == 60
    ends = {n: at for at, e in enumerate(entries) if isinstance(e, Acknowledged) for n in [int(e.message.batch[-6:]) + 1]}  # fmt: skip
    steps, hours = views.hours(1000, *EVERYTHING)["hours"]["RaaS"]
    gone = next(at for at, e in enumerate(entries) if isinstance(e, RaasGone))
    assert steps == sorted(ends) and hours == pytest.approx([min(ends[n], gone) / 3600 for n in steps])  # fmt: skip
    # Every group is pushed by r0, so that the leases of r1 stay.
    leases = views.leases()
    assert leases is not None
    assert leases["count"] == sum(isinstance(e, Leased) and e.raas == "r1" for e in entries)
