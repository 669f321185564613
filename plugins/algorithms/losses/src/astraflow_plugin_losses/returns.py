"""Returns and advantages of tokens from rewards of tokens: float64 NumPy on packed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError
from astraflow_core.types import Batch
from astraflow_plugin_losses.config import Outcome
from astraflow_plugin_losses.normalization import Floats

Indices = npt.NDArray[np.int64]
StepUnit = Literal["token", "turn"]
StepScope = Literal["sequence", "trajectory"]


@dataclass(frozen=True, slots=True)
class Steps:
    """The actions of a batch in the order of their chains, ``S`` of them over ``M`` trained tokens.

    int64: ``first`` and ``last`` ``[S]``, positions of the first and last token of each step; ``chain``
    ``[S]``, not decreasing; ``tokens`` ``[M]``, positions of trained tokens in the same order, and ``of_token``
    ``[M]``, the step of each.
    """

    first: Indices
    last: Indices
    chain: Indices
    tokens: Indices
    of_token: Indices


def steps_of(batch: Batch, unit: StepUnit = "token", scope: StepScope = "sequence") -> Steps:
    """Trained tokens as steps, or runs of them without a hole (turns); chains are the rows, or trajectories
    with their rows in the order of their turns, as far as the batch holds them."""
    tokens = np.flatnonzero(batch.loss_mask)
    row = batch.row_of_token[tokens]
    chain_of_row = np.arange(len(batch))
    if scope == "trajectory":
        if batch.units is None:
            raise UserError(
                f"gae_scope = 'trajectory' reads the order of turns, and batch {batch.id!r} ({len(batch)} "
                "rows) has no units; batches of a dataflow have them, for one built by hand use "
                "astraflow_testing.stamping"
            )
        chain_of_row = np.unique(batch.trajectory, return_inverse=True)[1]
        order = np.lexsort((tokens, batch.units.turn[row], chain_of_row[row]))
        tokens, row = tokens[order], row[order]
    starts = np.ones(len(tokens), dtype=np.bool_)
    if unit == "turn":
        starts[1:] = (np.diff(tokens) != 1) | (np.diff(row) != 0)
    begins = np.flatnonzero(starts)
    ends = np.append(begins[1:], len(tokens))[: len(begins)] - 1
    return Steps(
        tokens[begins], tokens[ends], chain_of_row[row[begins]], tokens, np.cumsum(starts) - 1
    )


def token_rewards(
    batch: Batch,
    outcome: npt.NDArray[np.floating],
    scope: StepScope = "sequence",
    kind: Outcome = "rest",
) -> Floats:
    """What each trained token earned, 0 elsewhere: float64 ``[N]``. That is what the turns of its row earned up to
    there since the trained token before it, and at the last one of each row its outcome (``[R]``).

    With scope ``trajectory`` only the last row that a trajectory has in the batch has an outcome. With kind ``rest``
    the outcome counts less what the turns of the row, or of all these rows, earned: their sum is the outcome.
    """
    steps = steps_of(batch, "token", scope)
    rewards = np.zeros(len(batch.tokens))
    last = np.append(np.diff(steps.chain) > 0, True)[: len(steps.tokens)]
    ends = steps.tokens[last]
    rewards[ends] = outcome[batch.row_of_token[ends]]
    if batch.turn_rewards is None:
        return rewards
    named = np.flatnonzero(batch.turn_rewards)
    values = batch.turn_rewards[named].astype(np.float64)
    if kind == "rest":
        chain = np.full(len(batch), -1)
        chain[batch.row_of_token[steps.tokens]] = steps.chain
        of = chain[batch.row_of_token[named]]
        earned = np.bincount(of[of >= 0], values[of >= 0], len(batch))
        rewards[ends] -= earned[steps.chain[last]]
    trained = np.flatnonzero(batch.loss_mask)
    before = np.searchsorted(trained, named, "right") - 1
    there = before >= 0
    there[there] = batch.row_of_token[trained[before[there]]] == batch.row_of_token[named[there]]
    np.add.at(rewards, trained[before[there]], values[there])
    return rewards


def returns_to_go(
    batch: Batch, rewards: Floats, gamma: float = 1.0, reset_at_holes: bool = False
) -> Floats:
    """``G_t = r_t + gamma · G_next`` over the trained tokens of each row, 0 elsewhere: float64 ``[N]``.

    Tokens outside the loss mask are carried over and not discounted (verl 0.9.1), or end the return of
    those before them (SkyRL, some revisions of verl).
    """
    steps = steps_of(batch)
    if reset_at_holes:
        steps = Steps(
            steps.first,
            steps.last,
            steps_of(batch, "turn").of_token,
            steps.tokens,
            steps.of_token,
        )
    estimates = discounted(steps.chain, rewards[steps.first], gamma)
    return _at_tokens(steps, estimates, len(rewards))


def gae(
    batch: Batch,
    rewards: Floats,
    values: Floats,
    gamma: float,
    lam: float,
    unit: StepUnit = "token",
    scope: StepScope = "sequence",
) -> Floats:
    """Generalized advantage estimates (Schulman et al. 2016, eq. 16) at trained tokens, 0 elsewhere: float64
    ``[N]``. The value after the last step of a chain is 0; tokens outside the loss mask are skipped, value and
    trace carried over, as in verl 0.9.1.

    With unit ``turn`` a step has the sum of its tokens' rewards and the value of the state before its first
    token, and all its tokens its estimate, as in Claw-R1. Returns are these plus ``values``, at the first
    token of each step.
    """
    steps = steps_of(batch, unit, scope)
    reward = np.zeros(len(steps.first))
    np.add.at(reward, steps.of_token, rewards[steps.tokens])
    estimates = _recursion(steps.chain, reward, values[steps.first], gamma, lam)
    return _at_tokens(steps, estimates, len(rewards))


def _at_tokens(steps: Steps, per_step: Floats, size: int) -> Floats:
    result = np.zeros(size)
    result[steps.tokens] = per_step[steps.of_token]
    return result


def discounted(chain: Indices, rewards: Floats, gamma: float) -> Floats:
    """``G_s = r_s + gamma · G_next`` of steps ``[S]``; neighbours of the same ``chain`` follow each other."""
    return _recursion(chain, rewards, np.zeros(len(rewards)), gamma, 1.0)


def _recursion(chain: Indices, rewards: Floats, values: Floats, gamma: float, lam: float) -> Floats:
    """The estimate of each step, float64 ``[S]``."""
    if not len(chain):
        return np.zeros(0)
    chain = np.cumsum(np.append(0, np.diff(chain) != 0))
    counts = np.bincount(chain)
    place = np.arange(len(chain)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (len(counts), int(counts.max()))
    reward, value, estimates = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    reward[chain, place], value[chain, place] = rewards, values
    trace, after = np.zeros(len(counts)), np.zeros(len(counts))
    # Beyond the end of a chain everything is 0, so short ones need no case of their own.
    for column in reversed(range(shape[1])):
        delta = reward[:, column] + gamma * after - value[:, column]
        trace = delta + gamma * lam * trace
        estimates[:, column], after = trace, value[:, column]
    return np.asarray(estimates[chain, place])
