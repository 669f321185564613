"""Algorithms that know turns, against the public implementations that they name; and who earns what, by loops."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.errors import UserError
from astraflow_core.types import Batch
from astraflow_testing.stamping import stamped

C = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_cases.py"))))
P = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_turns.py"))))
build = C.build
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Played:
    """A batch of whole groups, and of each turn its first and last token in it, rewards, group and so on."""

    batch: Batch
    tokens: list[slice]
    rewards: npt.NDArray[np.float64]
    group: Ints
    trajectory: Ints
    place: Ints
    state: Ints


def play(
    seed: int,
    counts: tuple[tuple[int, ...], ...] = ((3, 1, 2, 4), (2, 2), (5,), (1,)),
    outcome: str = "rest",
) -> Played:
    """Of each group the number of turns of its trajectories. Turns have one to three trained tokens; where a turn does
    not follow in the same sequence, a sequence begins. Two states besides the first of all."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    number = 0
    for group, lengths in enumerate(counts):
        for length in lengths:
            number += 1
            earned = rng.integers(-4, 5, length) / 4 * (rng.random(length) < 0.6)
            whole = float(rng.integers(0, 3))
            reward = earned.sum() + whole if outcome == "rest" else whole
            for place in range(length):
                if place == 0 or rng.random() < 0.3:
                    rows.append({"mask": [False] * int(rng.integers(1, 4)), "rewards": {}})
                    rows[-1] |= {"states": {}, "group": group, "trajectory": number}
                    rows[-1]["reward"] = reward
                else:
                    rows[-1]["mask"] += [False] * int(rng.integers(1, 3))
                row = rows[-1]
                first = len(row["mask"])
                row["mask"] += [True] * int(rng.integers(1, 4))
                last = len(row["mask"]) - 1
                state = int(rng.integers(1, 3)) if place else 9
                row["states"][last] = state
                if earned[place]:
                    row["rewards"][last] = earned[place]
                turns.append({"row": len(rows) - 1, "first": first, "last": last})
                turns[-1] |= {"reward": earned[place] + whole * (place == length - 1)}
                turns[-1] |= {"group": group, "trajectory": number, "place": place, "state": state}
    lengths = np.array([len(row["mask"]) for row in rows], np.int32)
    starts = np.cumsum(lengths) - lengths
    mask = np.concatenate([row["mask"] for row in rows])
    dense = {"rewards": np.zeros(len(mask), np.float32), "states": np.zeros(len(mask), np.int64)}
    for start, row in zip(starts, rows, strict=True):
        for name, values in dense.items():
            for index, value in row[name].items():
                values[start + index] = value
    none = np.zeros(len(rows), np.float32)
    batch = Batch(
        id="b", policy="p", version=3, lengths=lengths, tokens=np.zeros(len(mask), np.int32), loss_mask=mask,
        logprobs=np.where(mask, -1, 0).astype(np.float32), versions=np.where(mask, 2, -1).astype(np.int32),
        rewards=np.array([row["reward"] for row in rows], np.float32),
        group=np.array([row["group"] for row in rows]), trajectory=np.array([row["trajectory"] for row in rows]),
        group_size=none.astype(np.int32), group_mean=none, group_std=none,
        turn_rewards=dense["rewards"], turn_states=dense["states"],
    )  # fmt: skip

    def column(name: str) -> Any:
        return np.array([turn[name] for turn in turns])

    return Played(
        stamped(batch, np.zeros(len(rows), np.bool_)),
        [slice(starts[t["row"]] + t["first"], starts[t["row"]] + t["last"] + 1) for t in turns],
        column("reward"), column("group"), column("trajectory"), column("place"), column("state"),
    )  # fmt: skip


def check(played: Played, use: str, keys: dict[str, Any], expected: Any) -> None:
    """Of the whole batch, and of parts of it in any order: what was stamped does not change."""
    algorithm = build(use, keys)
    want = np.zeros(len(played.batch.tokens))
    for tokens, value in zip(played.tokens, expected, strict=True):
        want[tokens] = value
    found = algorithm.advantages(played.batch)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    rows = np.random.default_rng(0).permutation(len(played.batch))[: len(played.batch) // 2 + 1]
    part = played.batch.take(np.append(rows, rows[0]))
    spans = [slice(*played.batch.offsets[[r, r + 1]]) for r in [*rows, rows[0]]]
    np.testing.assert_array_equal(
        algorithm.advantages(part), np.concatenate([found[span] for span in spans])
    )


@pytest.mark.parametrize("outcome", ["rest", "whole"])
@pytest.mark.parametrize("mode", ["mean_norm", "mean_std_norm"])
@pytest.mark.parametrize("unit", ["turn", "trajectory"])
@pytest.mark.parametrize("seed", range(4))
def test_gigpo_is_that_of_verl_agent(seed: int, unit: str, mode: str, outcome: str) -> None:
    # But for groups of one score, which keep it there.
    played = play(seed, ((3, 1, 2, 4), (2, 2), (5, 3, 3)), outcome)
    expected = P.verl_agent_gigpo(
        played.rewards,
        played.group,
        played.trajectory,
        played.state,
        0.8,
        0.6,
        mode,
        unit == "turn",
    )
    keys = {
        "gamma": 0.8,
        "step_weight": 0.6,
        "mode": mode,
        "episode_unit": unit,
        "outcome": outcome,
    }
    check(played, "gigpo", keys, expected)


def test_turns_without_a_state_and_groups_of_one_turn_have_no_advantage() -> None:
    played = play(2)
    batch = stamped(replace(played.batch, turn_states=None), np.zeros(len(played.batch), np.bool_))
    weighed, unweighed = (
        build("gigpo", {"step_weight": weight}).advantages(batch) for weight in (0.0, 3.0)
    )
    np.testing.assert_array_equal(weighed, unweighed)
    assert weighed.any() and not weighed[played.tokens[-1]].any()


@pytest.mark.parametrize("outcome", ["rest", "whole"])
@pytest.mark.parametrize("estimator", ["additive", "cumulative"])
@pytest.mark.parametrize("seed", range(3))
def test_two_turns_have_the_advantages_of_mt_grpo(seed: int, estimator: str, outcome: str) -> None:
    played = play(seed, ((2, 2, 2, 2), (2, 2, 2)), outcome)
    # There only the first turn has a reward of its own.
    lasts = [tokens.stop - 1 for tokens in played.tokens]
    rewards = played.batch.turn_rewards
    assert rewards is not None
    turn = rewards[lasts[0::2]].astype(float)
    result = played.batch.rewards[played.batch.row_of_token[lasts[0::2]]].astype(float)
    rewards[lasts[1::2]] = 0
    batch = stamped(
        replace(played.batch, turn_rewards=rewards), np.zeros(len(played.batch), np.bool_)
    )
    if outcome == "rest":
        result = result - turn
    expected = P.mt_grpo(turn, result, played.group[0::2], estimator, 0.7, 0.9)
    keys = {"estimator": estimator, "turn_coef": 0.7, "gamma": 0.9, "outcome": outcome}
    check(replace(played, batch=batch), "turn_grpo", keys, expected.reshape(-1))


def test_turns_are_compared_with_those_that_got_as_far() -> None:
    played = play(5)
    returns = P.discounted(played.rewards, played.trajectory, 0.9)
    expected = P.rllm_per_step(returns, played.group, played.place)
    keys = {"estimator": "cumulative", "gamma": 0.9, "normalize_std": False}
    check(played, "turn_grpo", keys, expected)


@pytest.mark.parametrize("outcome", ["rest", "whole"])
@pytest.mark.parametrize("baseline", ["none", "turn"])
@pytest.mark.parametrize("whiten", ["none", "turn", "token"])
def test_reinforce_has_the_returns_of_rllm(baseline: str, whiten: str, outcome: str) -> None:
    played = play(7, outcome=outcome)
    expected = P.discounted(played.rewards, played.trajectory, 0.8)
    if baseline == "turn":
        expected = P.rllm_per_step(expected, played.group, played.place)
    keys = {"gamma": 0.8, "baseline": baseline, "outcome": outcome}
    if whiten == "none":
        check(played, "reinforce", keys, expected)
        return
    times = [1 if whiten == "turn" else tokens.stop - tokens.start for tokens in played.tokens]
    sample = np.repeat(expected, times)
    want = np.zeros(len(played.batch.tokens))
    for tokens, value in zip(played.tokens, expected, strict=True):
        want[tokens] = (value - sample.mean()) / np.sqrt(sample.var(ddof=1) + 1e-8)
    found = build("reinforce", keys | {"whiten": whiten}).advantages(played.batch)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use", ["gigpo", "turn_grpo", "reinforce"])
def test_a_batch_without_turns_is_refused(use: str) -> None:
    with pytest.raises(UserError, match=f"{use} compares turns of whole groups, and batch 'b'"):
        build(use, {}).advantages(replace(play(1).batch, turns=None))


@pytest.mark.parametrize("use", ["gigpo", "turn_grpo", "reinforce"])
def test_a_batch_in_which_nothing_is_trained_has_no_advantage(use: str) -> None:
    batch = play(1).batch
    empty = stamped(replace(batch, loss_mask=np.zeros_like(batch.loss_mask)))
    assert not build(use, {}).advantages(empty).any()


rewarded = st.lists(
    st.tuples(st.booleans(), st.none() | st.integers(-8, 8).map(lambda n: n / 4)),
    min_size=1,
    max_size=8,
)


@given(
    rows=st.lists(st.tuples(rewarded, st.integers(-4, 4)), min_size=1, max_size=4),
    outcome=st.sampled_from(["rest", "whole"]),
)
def test_tokens_earn_what_loops_give_them(rows: list[Any], outcome: str) -> None:
    lengths = np.array([len(tokens) + 1 for tokens, _ in rows], np.int32)
    mask = np.concatenate([[False, *(t for t, _ in tokens)] for tokens, _ in rows])
    named = np.concatenate([[0.0, *(r or 0.0 for _, r in tokens)] for tokens, _ in rows])
    returns: list[float] = []
    for tokens, reward in rows:
        earned = [0.0] * (len(tokens) + 1)
        there = [index + 1 for index, (trained, _) in enumerate(tokens) if trained]
        for index, (_, gained) in enumerate(tokens, 1):
            before = [place for place in there if place <= index]
            if gained and before:
                earned[before[-1]] += gained
        if there:
            of_turns = sum(gained or 0.0 for _, gained in tokens)
            earned[there[-1]] += reward - (of_turns if outcome == "rest" else 0.0)
        running = 0.0
        found = [0.0] * len(earned)
        for index in reversed(there):
            running = found[index] = earned[index] + 0.5 * running
        returns += found
    many = len(rows)
    none = np.zeros(many, np.float32)
    batch = Batch(
        id="b", policy="p", version=1, lengths=lengths, tokens=np.zeros(len(mask), np.int32), loss_mask=mask,
        logprobs=np.zeros(len(mask), np.float32), versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=np.array([reward for _, reward in rows], np.float32), group=np.arange(many),
        trajectory=np.arange(many), group_size=none.astype(np.int32), group_mean=none, group_std=none,
        turn_rewards=named.astype(np.float32), values=np.zeros(len(mask), np.float32),
    )  # fmt: skip
    keys = {"gamma": 0.5, "outcome": outcome}
    batch = stamped(batch)
    found_gae = build("ppo", keys | {"lam": 1.0, "whiten": False}).advantages(batch)
    np.testing.assert_allclose(found_gae, returns, atol=1e-5)
    if mask.sum() > 1:
        of = np.array(returns)[mask]
        whitened = build("reinforce_pp", keys).advantages(batch)[mask]
        expected = (of - of.mean()) / np.sqrt(of.var(ddof=1) + 1e-8)
        np.testing.assert_allclose(whitened, expected, rtol=1e-3, atol=1e-3)
    # Over the trajectory it is the same where each has one row.
    scope = {"gae_scope": "trajectory", "lam": 1.0, "whiten": False}
    np.testing.assert_array_equal(build("ppo", keys | scope).advantages(batch), found_gae)
