"""The simulator against steps worked out by hand, and a recording against the journal that it was read from."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import tomli_w

from astraflow_contrib_simulate.command import bytes_per_s, numbers
from astraflow_contrib_simulate.load import rollout_s, slowdown
from astraflow_contrib_simulate.prediction import predict, recommended, recorded
from astraflow_contrib_simulate.reading import read_run
from astraflow_contrib_simulate.recording import (
    RecordedGroup,
    RecordedPolicy,
    RecordedStep,
    Recording,
    load,
)
from astraflow_contrib_simulate.simulator import Setting
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    AttemptFailed,
    BatchRequested,
    Judged,
    Leased,
    Pushed,
    RaasLeft,
    RaasRegistration,
    TrainerRegistration,
)
from astraflow_runtime.dataflow.journal.entry_log import encode_record
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_wire.groups import GroupHeader, SequenceHeader
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    FailTask,
    LeaveRaas,
    NextBatch,
    RegisterRaas,
    RegisterTrainer,
)


def recording(
    rollout: float = 1.0,
    busy: float = 0.5,
    *,
    places: int = 16,
    rows: int = 8,
    refresh: float = 0.0,
    size: int = 0,
    policies: tuple[str, ...] = ("solver",),
) -> Recording:
    """Batches of 32, groups of 8; every rollout and every update takes the same time."""
    step = RecordedStep(at_s=1.0, busy_s=busy, waited_s=0.0, staleness=[0])
    policy = RecordedPolicy(
        batch_sequences=32, publish_every=1, ranks=1, per_trajectory=1.0, fresh=32.0, size=size,
        pull_s=refresh, swap_s=0.0, steps=[step], accepted=0,
    )  # fmt: skip
    group = RecordedGroup(seconds=rollout, busy=8.0, size=8, rows=dict.fromkeys(policies, rows))
    return Recording(
        run="hand", replicas=1.0, places=places, max_staleness=1, group_size=8, turnaround_s=0.0,
        groups=[group], policies=dict.fromkeys(policies, policy),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("replicas", "bound", "facts", "step_s", "waiting"),
    [
        # Synchronous: the four groups of a batch, two at a time in each RaaS, then the update.
        (1, 0, {}, 2.5, 0.8),
        (2, 0, {}, 1.5, 2 / 3),
        (4, 0, {}, 1.5, 2 / 3),  # four groups need no more than two RaaS
        (2, 0, {"refresh": 0.25}, 1.75, 5 / 7),  # each version must arrive first
        # Asynchronous: the slower of both; 2 groups a second and RaaS against one update in 0.5 s.
        (1, 1, {}, 2.0, 0.75),
        (2, 1, {}, 1.0, 0.5),
        (4, 3, {}, 0.5, 0.0),
        (8, 7, {}, 0.5, 0.0),
        # One group in two is refused: twice the rollouts.
        (2, 1, {"rows": 4}, 2.0, 0.75),
        # One place less than a group: a RaaS runs one group all the same.
        (4, 1, {"places": 7}, 1.0, 0.5),
    ],
)
def test_steps_worked_by_hand(replicas, bound, facts, step_s, waiting):
    figures = predict(recording(**facts), Setting(replicas, bound)).policies["solver"]
    assert figures.step_s == pytest.approx(step_s, rel=0.02)
    assert figures.waiting_fraction == pytest.approx(waiting, abs=0.02)
    assert max(figures.staleness) <= bound
    rows = 32 * 3600 / step_s / (1 + replicas)
    assert figures.rows_per_gpu_hour == pytest.approx(rows, rel=0.03)


def test_the_bound_limits_what_more_raas_can_do():
    """Two batches may be under way: one is trained while the other is rolled out, however many roll out."""
    few, many = (predict(recording(10.0), Setting(n, 1)).step_s for n in (8, 64))
    assert few == pytest.approx(many, rel=0.02)
    wider = predict(recording(10.0), Setting(64, 7)).step_s
    assert wider < 0.4 * many


def test_a_slow_link_makes_rollouts_older():
    fast, far = (predict(recording(size=1_000_000), Setting(1, 4, rate)) for rate in (1e9, 0.5e6))
    mean = [
        sum(lag * rows for lag, rows in p.policies["solver"].staleness.items())
        / sum(p.policies["solver"].staleness.values())
        for p in (fast, far)
    ]
    assert mean[1] > mean[0]
    assert far.step_s >= fast.step_s
    sync = predict(recording(0.2, size=1_000_000), Setting(8, 0, 1e6)).step_s
    assert sync == pytest.approx(1.0 + 0.2 + 0.5, rel=0.02)


def test_two_policies_share_the_rollouts():
    both = predict(recording(policies=("a", "b")), Setting(2, 1))
    assert {name: f.step_s for name, f in both.policies.items()} == pytest.approx(
        {"a": 1.0, "b": 1.0}, rel=0.03
    )


def lending(borrowed: int, rows: dict[str, int], busy: float = 0.5, own: int = 32) -> Recording:
    """Policy ``b`` borrows so many rows of a batch from ``a``; ``rows`` of each come of a group."""
    told = recording(policies=("a", "b"))
    policy = told.policies["b"]
    b = msgspec.structs.replace(
        policy,
        per_trajectory=rows.get("b", 0) / 8,
        fresh=float(own),
        source="a",
        borrowed=float(borrowed),
        most_borrowed=borrowed,
        steps=[msgspec.structs.replace(policy.steps[0], busy_s=busy)],
    )
    group = msgspec.structs.replace(told.groups[0], rows=rows)
    policies = {"a": told.policies["a"], "b": b}
    return msgspec.structs.replace(told, groups=[group], policies=policies)


@pytest.mark.parametrize(
    ("replicas", "bound", "busy", "steps"),
    [
        # One stream: both go at the pace of its owner, be it synchronous or not.
        (1, 0, 0.5, (2.5, 2.5)),
        (2, 0, 0.5, (1.5, 1.5)),
        (1, 1, 0.5, (2.0, 2.0)),
        (4, 3, 0.5, (0.5, 0.5)),
        # A slower borrower delays no other policy. After the owner's last update it gets all rollouts.
        (4, 3, 2.0, (0.5, 2.0)),
    ],
)
def test_a_shared_stream_goes_at_its_owners_pace(replicas, bound, busy, steps):
    told = lending(32, {"a": 8}, busy, own=0)
    assert told.policies["b"].shares == "a"
    figures = predict(told, Setting(replicas, bound)).policies
    assert [figures[name].step_s for name in "ab"] == pytest.approx(steps, rel=0.03)
    assert max(figures["b"].staleness) <= bound
    assert sum(figures["b"].staleness.values()) >= 50 * 32
    assert figures["b"].rows_per_gpu_hour == 0


@pytest.mark.parametrize(
    ("borrowed", "step_s"),
    # A group brings 8 rows of a and 4 of b, two come in a second. 32 rows of b are 8 groups, 24 are 6, 16 are 4.
    [(0, 4.0), (8, 3.0), (16, 2.0)],
)
def test_what_is_borrowed_is_not_rolled_out(borrowed, step_s):
    told = lending(borrowed, {"a": 8, "b": 4}, own=32 - borrowed)
    figures = predict(told, Setting(1, 1)).policies
    assert figures["b"].step_s == pytest.approx(step_s, rel=0.03)
    assert figures["a"].step_s == pytest.approx(2.0, rel=0.03)
    assert max(figures["b"].staleness) <= 1


def test_a_setting_without_progress_has_no_prediction(monkeypatch):
    monkeypatch.setattr("astraflow_contrib_simulate.simulator.MOST_EVENTS", 2000)
    nothing = predict(recording(rows=0), Setting(1, 1))
    assert nothing.policies == {}
    assert recommended([nothing]) is None


def test_the_fewest_raas_that_are_fast_enough_are_recommended():
    predictions = [predict(recording(), Setting(n, 3)) for n in (1, 2, 4, 8, 16)]
    best = recommended(predictions)
    assert best is not None
    assert best.setting.replicas == 4


def test_company_slows_a_rollout_as_far_as_the_recording_shows():
    noise = [0.05, -0.05, 0.02, -0.02] * 5
    groups = [
        RecordedGroup(seconds=1.0 + 0.1 * n + extra, busy=float(n), size=8)
        for n, extra in enumerate(noise, 1)
    ]
    slope = slowdown(groups)
    assert slope == pytest.approx(0.1, abs=0.01)
    assert rollout_s(groups[0], 11.0, slope) == pytest.approx(groups[0].seconds + 10 * slope)
    assert rollout_s(groups[-1], -1e6, slope) == pytest.approx(0.1 * groups[-1].seconds)
    alone = [RecordedGroup(seconds=1.0 + extra, busy=8.0, size=8) for extra in noise]
    chance = [RecordedGroup(seconds=1 + e, busy=float(n), size=8) for n, e in enumerate(noise)]
    assert slowdown(alone) == slowdown(chance) == slowdown(groups[:3]) == 0.0


CONFIG = {
    "run": {"name": "told", "steps": 9, "max_staleness": 2, "group_size": 2},
    "prompts": {"use": "p"},
    "policies": {
        "solver": {
            "model": "m", "trainer": {"use": "t", "ranks": 2}, "algorithm": {"use": "a"},
            "engine": {"use": "e"}, "transport": {"use": "x"}, "batch_sequences": 2,
        }
    },
    "raas": {"max_concurrent_episodes": 4},
}  # fmt: skip


def pushed(task, first, version, rows=(0, 1)):
    sequences = [SequenceHeader("solver", 5, 1.0, n, False, version) for n in range(2)]
    header = GroupHeader(task=task, prompt_id="p", raas="r0", trajectories=2, sequences=sequences)
    judged = Judged("solver", "", "" if rows else "dull", first, list(rows))
    return Pushed(header=header, trained=[3, 3], accepted=bool(rows), judged=[judged])


def told_run(folder: Path) -> Path:
    """A run of two groups at a time whose steps take 4 s, 3 of them waits, but for the first."""
    raas = RegisterRaas(raas="r0", pid=1, host="h", policies=["solver"], capacity=4)
    announced = AnnouncementMessage(
        policy="solver", version=0, transport="x", endpoints=[], digest="d", size=1000
    )
    entries = [
        (0.0, TrainerRegistration(message=RegisterTrainer(policy="solver", pid=1, host="h"))),
        (0.0, Announced(message=announced)),
        (1.0, RaasRegistration(message=raas)),
    ]
    at, waited = 5.0, 0.0
    for n in range(5):
        task, dull = f"train-{2 * n}", f"train-{2 * n + 1}"
        entries += [
            (at, Leased(task=task, raas="r0", capacity=4)),
            (at, Leased(task=dull, raas="r0", capacity=4)),
            (at + 1.5, pushed(dull, 0, n, rows=())),
            (at + 3.0, pushed(task, 2 * n, max(0, n - 1))),
        ]
        asked = NextBatch(policy="solver", version=n, wait_s=1.0)
        entries.append(
            (at + 3.0, BatchRequested(message=asked, batch=f"b{n}", arrivals=[2 * n, 2 * n + 1]))
        )
        at, waited = at + 4.0, waited + 3.0
        done = AcknowledgeBatch(policy="solver", batch=f"b{n}", version=n + 1, metrics={})
        entries.append(
            (
                at,
                Acknowledged(
                    message=done, tokens_generated=0, generated={}, first_asked=0, waited_s=waited
                ),
            )
        )
    entries += [
        (at, Leased(task="train-10", raas="r0", capacity=4)),
        (at + 1, AttemptFailed(message=FailTask(raas="r0", task="train-10", error="x"))),
        (at + 1, RaasLeft(message=LeaveRaas(raas="r0", reason="done"))),
    ]
    (folder / "journal").mkdir(parents=True)
    with (folder / "journal" / "entries.log").open("wb") as log:
        for seconds, entry in entries:
            log.write(b"".join(encode_record(entry, seconds)))
        log.write(b"AFJ\n half a record")
    (folder / "config.toml").write_text(tomli_w.dumps(CONFIG))
    line = {"policy": "solver", "step": 1, "refresh": {"swaps": 2, "pull_s": 0.5, "swap_s": 0.25}}
    (folder / "metrics.jsonl").write_bytes(b'{"da\xff\n' + json.dumps(line).encode() + b"\n{half")
    return folder


def test_a_recording_is_what_the_journal_says(tmp_path):
    told = read_run(told_run(tmp_path))
    assert (told.run, told.replicas, told.places, told.max_staleness) == ("told", 1.0, 4, 2)
    assert [g.seconds for g in told.groups] == [1.5, 3.0] * 5 + [1.0]
    assert [g.rows for g in told.groups] == [{}, {"solver": 2}] * 5 + [{}]
    policy = told.policies["solver"]
    assert (policy.ranks, policy.fresh, policy.size) == (2, 2.0, 1000)
    assert (policy.pull_s, policy.swap_s, policy.accepted) == (0.5, 0.25, 8)
    assert [(s.busy_s, s.waited_s, s.staleness) for s in policy.steps] == [(1.0, 3.0, [1, 1])] * 4
    figures = recorded(told, gpus_per_raas=2.0)["solver"]
    assert (figures.step_s, figures.waiting_fraction) == (4.0, 0.75)
    assert figures.staleness == {1: 8}
    assert figures.rows_per_gpu_hour == pytest.approx(8 * 3600 / 16 / 4)
    told.save(tmp_path / "file.json")
    assert load(tmp_path / "file.json") == told


def test_a_raas_that_starts_anew_holds_nothing_of_before(tmp_path):
    run = told_run(tmp_path)
    log = run / "journal" / "entries.log"
    whole = list(JournalReader(log.parent).entries())
    came = next(entry for _, entry in whole if isinstance(entry, RaasRegistration))
    lost = [(4.0, Leased(task=f"train-{90 + n}", raas="r0", capacity=4)) for n in range(2)]
    entries = [*whole[:3], *lost, (4.5, came), *whole[3:]]
    log.write_bytes(b"".join(part for at, entry in entries for part in encode_record(entry, at)))
    assert read_run(run).groups == read_run(told_run(tmp_path / "undisturbed")).groups


def test_the_command_takes_a_run_or_a_file(tmp_path, capsys):
    run, file = told_run(tmp_path), tmp_path / "file.json"
    assert (
        main(["simulate", "--run", str(run), "--replicas", "1..2", "--save", str(file), "--json"])
        == 0
    )
    first = json.loads(capsys.readouterr().out)
    assert [p["replicas"] for p in first["predictions"]] == [1, 2]
    assert first["recorded"]["policies"]["solver"]["step_s"] == 4.0
    assert main(["simulate", "--recording", str(file), "--replicas", "1,2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert (
        main(
            [
                "simulate",
                "--recording",
                str(file),
                "--max-staleness",
                "0..1",
                "--bandwidth",
                "1kB/s",
            ]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["happened", "1", "2", "as"]
    assert "recommended: 1 RaaS with max_staleness" in lines[-1]


def test_what_cannot_be_simulated_is_reported(tmp_path, capsys):
    (tmp_path / "no.json").write_text("{}")
    (tmp_path / "odd.json").write_bytes(b'{"run": "\xff"}')
    (tmp_path / "new.json").write_text(recording_of_format(2))
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").touch()
    for source, what in [
        (tmp_path / "no.json", "is not a recording"),
        (tmp_path / "odd.json", "is not a recording"),
        (tmp_path / "none.json", "cannot be read"),
        (tmp_path / "new.json", "has format 2; 1 is read"),
        (tmp_path / "begun", "the run in"),
    ]:
        option = "--run" if source.is_dir() else "--recording"
        assert main(["simulate", option, str(source)]) == 2
        assert what in capsys.readouterr().err
    young = told_run(tmp_path)
    log = young / "journal" / "entries.log"
    log.write_bytes(log.read_bytes()[:400])
    assert main(["simulate", "--run", str(young)]) == 2
    assert "not enough data" in capsys.readouterr().err


def recording_of_format(number: int) -> str:
    return msgspec.json.encode(msgspec.structs.replace(recording(), format=number)).decode()


def test_numbers_and_rates_are_read_as_written():
    assert numbers("1,2,4..6,5", "--replicas", 1) == [1, 2, 4, 5, 6]
    assert numbers("", "--replicas", 1) == []
    for text in ("0", "3..1", "a", "1..", "-1", "1..5000"):
        with pytest.raises(UserError, match="--replicas"):
            numbers(text, "--replicas", 1)
    rates = {"200MB/s": 2e8, "10Gbit": 1.25e9, "1.5k": 1500.0, "8bit/s": 1.0, "3tb": 3e12}
    assert {text: bytes_per_s(text) for text in rates} == rates
    for text in ("", "0", "fast", "-3MB"):
        with pytest.raises(UserError, match="--bandwidth"):
            bytes_per_s(text)
