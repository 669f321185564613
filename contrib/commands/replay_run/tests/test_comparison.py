"""Where a replay differs from its run first."""

from __future__ import annotations

from astraflow_contrib_replay_run.batches import OriginalStep
from astraflow_contrib_replay_run.comparison import compare, curve_rows, verdict
from astraflow_contrib_replay_run.service import ReplayedPolicy, ReplayedStep


def replayed(*losses: float, weights: tuple[str, ...] = ()) -> ReplayedPolicy:
    steps = [
        ReplayedStep(number, f"solver-{number - 1:06d}", "d", {"loss": loss, "update_s": number})
        for number, loss in enumerate(losses, 1)
    ]
    for step, digest in zip(steps, weights, strict=False):
        step.weights = digest
    return ReplayedPolicy(steps, "w0")


RECORD = {
    ("solver", 1): OriginalStep({"loss": 0.5, "update_s": 9.0}, "w1"),
    ("solver", 2): OriginalStep({"loss": 0.25, "update_s": 9.0}, "w2"),
}


def test_the_same_to_the_bit() -> None:
    found = compare("solver", replayed(0.5, 0.25, weights=("w1", "w2")), RECORD, "w0")
    assert (found.metrics_from, found.weights_from, found.compared) == (None, None, (2, 3))
    assert "2 updates with the metrics of the run" in verdict(found)
    assert "all 3 published versions" in verdict(found)


def test_metrics_differ_before_weights_do() -> None:
    found = compare("solver", replayed(0.5, 0.2500001, weights=("w1", "other")), RECORD, "w0")
    assert found.metrics_from == (2, "loss")
    assert found.weights_from == 2
    assert "the first update that differs is 2 (loss)" in verdict(found)


def test_other_initial_weights() -> None:
    found = compare("solver", replayed(0.5, weights=("w1",)), RECORD, "another model")
    assert found.weights_from == 0
    assert "initial weights differ" in verdict(found)


def test_what_was_not_published_is_not_compared() -> None:
    found = compare("solver", replayed(0.5, 0.25), RECORD, "w0")
    assert found.compared == (2, 1)


def test_a_long_replay_is_shown_by_some_of_its_updates() -> None:
    policy = replayed(*[0.5] * 100)
    header, rows = curve_rows("solver", policy.steps, RECORD, {}, {})
    assert header == ["update", "loss, run", "replay"]
    assert rows[0] == ["1", "0.5", "0.5"]
    assert [row[0] for row in rows][-1] == "100"
    assert len(rows) == 12
