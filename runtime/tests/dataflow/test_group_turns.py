"""The turns of whole groups: against loops, and in batches that have parts of the groups only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.types import Batch, GroupTurns
from astraflow_core.types.turns import TURN_COLUMNS
from astraflow_runtime.dataflow.rows.turns import WholeGroups, turns_of
from astraflow_wire.batches import decode_batch, encode_batch
from astraflow_wire.sparse import SparseValues

# Of each token: trained or not, what a turn earned there or None, the key of a state or None.
token = st.tuples(
    st.booleans(),
    st.none() | st.integers(-8, 8).map(lambda n: n / 4),
    st.none() | st.integers(1, 3),
)
sequence = st.tuples(st.lists(token, min_size=1, max_size=7), st.integers(-4, 4), st.booleans())
trajectories = st.lists(st.lists(sequence, min_size=1, max_size=3), min_size=1, max_size=4)


def by_loops(number: int, sequences: list[Any]) -> list[dict[str, Any]]:
    """The turns of one trajectory, token by token."""
    turns: list[dict[str, Any]] = []
    shared_reward, shared_earned, sharing = 0.0, 0.0, 0
    for place, (tokens, reward, own) in enumerate(sequences):
        open_turn, earned = False, 0.0
        for index, (trained, gained, state) in enumerate([(False, None, None), *tokens]):
            if trained:
                if not open_turn:
                    turns.append({"reward": 0.0, "outcome": 0.0, "rest": 0.0, "state": 0})
                    turns[-1] |= {"trajectory": number, "sequence": place, "group": number % 2}
                open_turn = gained is None and state is None
                turns[-1] |= {"last": index, "state": state or turns[-1]["state"]}
            else:
                open_turn = False
            if gained is not None:
                earned += gained
                if turns:
                    turns[-1]["reward"] += gained
        if own:
            if turns:
                turns[-1]["outcome"] += reward
                turns[-1]["rest"] += reward - earned
        else:
            shared_reward, shared_earned, sharing = reward, shared_earned + earned, sharing + 1
    if turns and sharing:
        turns[-1]["outcome"] += shared_reward
        turns[-1]["rest"] += shared_reward - shared_earned
    return turns


@pytest.mark.slow
@given(given=trajectories)
def test_turns_are_those_of_loops(given: list[list[Any]]) -> None:
    # Sequences that share a reward have the same.
    given = [
        [(tokens, (own and reward) or all_of[0][1], own) for tokens, reward, own in all_of]
        for all_of in given
    ]
    expected = [turn for n, all_of in enumerate(given) for turn in by_loops(n, all_of)]
    rows = [(n, *each) for n, all_of in enumerate(given) for each in all_of]
    tokens = [each for _, of, _, _ in rows for each in [(False, None, None), *of]]

    def sparse(column: int, dtype: Any) -> SparseValues:
        there = [(i, each[column]) for i, each in enumerate(tokens) if each[column] is not None]
        return SparseValues(
            np.array([i for i, _ in there], np.int64), np.array([v for _, v in there], dtype)
        )

    number = np.array([n for n, *_ in rows])
    found = turns_of(
        WholeGroups(
            np.array([each[0] for each in tokens], np.bool_),
            {"turn_rewards": sparse(1, np.float32), "turn_states": sparse(2, np.int64)},
            np.array([len(of) + 1 for _, of, _, _ in rows]),
            number % 2,
            number,
            np.array([float(reward) for *_, reward, _ in rows]),
            np.array([own for *_, own in rows], np.bool_),
        )
    )
    for column in TURN_COLUMNS:
        values = getattr(found, column.name)
        assert values.dtype == column.dtype
        want = [turn[column.name] for turn in expected]
        np.testing.assert_allclose(values, want, atol=1e-6, err_msg=column.name)


def as_rows(turns: GroupTurns | None) -> list[tuple[Any, ...]]:
    assert turns is not None
    return list(
        zip(*(getattr(turns, column.name).tolist() for column in TURN_COLUMNS), strict=True)
    )


def test_they_are_there_again_after_the_wire(bench, config) -> None:
    b = bench(config(policy__batch_sequences=2)).begin()
    (task,), _ = b.lease(2)
    b.push(task, turn_rewards={3: 0.5}, turn_states={3: "start", 4: 7})
    batch = b.next_batch(0)
    again = decode_batch(encode_batch(batch))
    assert isinstance(again, Batch) and as_rows(again.turns) == as_rows(batch.turns)
    assert as_rows(batch.take(np.array([1])).turns) == as_rows(batch.turns)
    assert batch.turns is not None and batch.turn_states is not None
    assert batch.turns.last.tolist() == [3, 4, 3, 4]
    assert batch.turns.sequence.tolist() == [0] * 4
    assert batch.turns.reward.tolist() == [0.5, 0, 0.5, 0]
    assert batch.turns.outcome.tolist() == [0, 0, 0, 1]
    assert batch.turns.rest.tolist() == [0, -0.5, 0, 0.5]
    keys = batch.turns.state.tolist()
    assert keys[:2] == keys[2:] and len({*keys, 0}) == 3
    assert batch.turn_states[batch.turn_states != 0].tolist() == keys


@pytest.mark.parametrize("restarted", [False, True])
def test_a_batch_has_the_turns_of_rows_that_it_does_not_have(bench, config, tmp_path, restarted):
    b = bench(config(policy__batch_sequences=3), journal=tmp_path).begin()
    (first, second, third), _ = b.lease(6)
    b.push(first, turn_rewards={2: 0.25})
    b.push(second)
    b.push(third)
    if restarted:
        b.restart()
    batch = b.next_batch(0)
    assert len(batch) == 3 and batch.turns is not None
    # Four trajectories, two of which have two turns each, since a reward ends one.
    assert len(np.unique(batch.turns.trajectory)) == 4
    assert set(batch.trajectory.tolist()) < set(batch.turns.trajectory.tolist())
    assert set(batch.turns.group.tolist()) == set(batch.group.tolist())
    assert batch.turns.last.tolist() == [2, 4, 2, 4, 4, 4]
    assert batch.turns.outcome.tolist() == [0, 0, 0, 1, 0, 1]
    if restarted:
        b.restart()
        assert encode_batch(b.next_batch(0)) == encode_batch(batch)


def test_what_a_teacher_gives_tokens_ends_no_turn() -> None:
    every = np.arange(1, 6)
    whole = WholeGroups(
        loss_mask=np.arange(6) > 0,
        given={"teacher_logprobs": SparseValues(every, np.full(5, -0.5, np.float32))},
        lengths=np.array([6]),
        group=np.array([0]),
        trajectory=np.array([0]),
        rewards=np.ones(1),
        own=np.ones(1, np.bool_),
    )
    assert turns_of(whole).last.tolist() == [5]
