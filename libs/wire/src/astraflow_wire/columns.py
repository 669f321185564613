"""Validates the columns of a pushed group, so that no sequence can corrupt a gradient. Every check
is vectorized over a column; a failing value is then located for the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WireError
from astraflow_core.types.trajectory import NOT_SAMPLED
from astraflow_wire.experts.routing import check_routing
from astraflow_wire.images.checks import check_images
from astraflow_wire.model_files.model_limits import ModelLimits

if TYPE_CHECKING:
    from astraflow_wire.groups import ReceivedGroup
    from astraflow_wire.sparse import SparseValues

HIGHEST_LOGPROB = 1e-3
"""A log-prob is at most 0. In float32 it may come out above, by the rounding of ``logit / temperature`` and of the sum
that it is held against: half a unit in the last place of 5000, which a logit of 50 is at temperature 0.01, is 2.4e-4."""
LOWEST_LOGPROB = -44.0
"""The largest ratio of probabilities against a token with this log-prob is ``exp(44)``, and its square, which gradient
norms and effective sample sizes take, is the last that float32 holds. A token with it is sampled once in 1e19."""
LARGEST_REWARD = 1e14
"""Those of all sequences that a group may have add up to 6.6e18, whose square, which variances take, float32 holds."""

Column = npt.NDArray[Any]
_least, _most, _some = np.minimum.reduce, np.maximum.reduce, np.logical_or.reduce
_NO_VERSION = np.uint32(NOT_SAMPLED & 0xFFFFFFFF)
"""A version is compared as a number without sign, so that :data:`NOT_SAMPLED` is the largest."""


def check_columns(group: ReceivedGroup) -> None:
    """Reject (:class:`WireError`) a group with values that sampling cannot produce: a loss mask
    that is neither 0 nor 1, a trained first token or one with a version, ids below 0, versions
    below -1 and trained tokens without one, log-probs outside of :data:`LOWEST_LOGPROB` to
    :data:`HIGHEST_LOGPROB` or, without a version, other than 0, rewards beyond
    :data:`LARGEST_REWARD`, or a header that says another trajectory or smallest version than there
    is or has another number of values of a metric than trajectories, or whose sparse columns have a
    number beyond :data:`LARGEST_REWARD` or a value of a token that no policy sampled. A token that
    was sampled and is not trained keeps its log-prob and version; code that multiplies by the mask
    must not meet a NaN."""
    if len(group.tokens):
        _check_tokens(group)
    sampled = group.versions != NOT_SAMPLED
    _check_sequences(group, sampled)
    _check_not_sampled(group, sampled)
    for name, given in group.sparse.items():
        _check_sparse(group, name, given)
    if group.header.metrics:
        _check_metrics(group)


def _check_tokens(group: ReceivedGroup) -> None:
    mask, given = group.loss_mask, group.logprobs
    # The methods of arrays for this are Python functions, which cost as much as the work for a group.
    if _most(mask) > 1:
        raise _error(group, mask > 1, "loss_mask", mask, "0 or 1")
    if _least(group.tokens) < 0:
        raise _error(group, group.tokens < 0, "tokens", group.tokens, "ids of 0 or more")
    if _least(group.versions) < NOT_SAMPLED:
        wrong = group.versions < NOT_SAMPLED
        raise _error(group, wrong, "versions", group.versions, f"{NOT_SAMPLED} or more")
    if not (_least(given) >= LOWEST_LOGPROB and _most(given) <= HIGHEST_LOGPROB):
        # A comparison with NaN is false.
        fine = (given >= LOWEST_LOGPROB) & (given <= HIGHEST_LOGPROB)
        bounds = f"finite log-probs from {LOWEST_LOGPROB:g} to 0"
        raise _error(group, ~fine, "logprobs", given, bounds)


def _check_metrics(group: ReceivedGroup) -> None:
    header = group.header
    for name, values in header.metrics.items():
        if len(values) != header.trajectories:
            raise WireError(
                f"RaaS {header.raas!r:.80}: metric {name!r:.80} has {len(values)} values for {header.trajectories} "
                "trajectories; expected one for each, null where there is none"
            )


def _check_sequences(group: ReceivedGroup, sampled: npt.NDArray[np.bool_]) -> None:
    header, starts, mask = group.header, group.offsets[:-1], group.loss_mask.view(np.bool_)
    if _some(first := mask[starts]):
        index = int(np.flatnonzero(first)[0])
        raise WireError(f"{_who(group, index)}: the first token cannot be trained")
    for index, (sequence, version) in enumerate(
        zip(header.sequences, _least_trained(group, sampled), strict=True)
    ):
        if not abs(sequence.reward) <= LARGEST_REWARD:
            raise WireError(
                f"{_who(group, index)}: reward is {sequence.reward}; a reward is finite and within "
                f"±{LARGEST_REWARD:g}"
            )
        if sequence.min_version != version:
            raise WireError(
                f"{_who(group, index)}: min_version is {sequence.min_version}; the smallest of its trained "
                f"tokens is {version}"
            )
        if not 0 <= sequence.trajectory < header.trajectories:
            raise WireError(
                f"{_who(group, index)}: trajectory is {sequence.trajectory} of "
                f"{header.trajectories}"
            )


def _least_trained(group: ReceivedGroup, sampled: npt.NDArray[np.bool_]) -> list[int]:
    """The smallest version of the trained tokens of each sequence, :data:`NOT_SAMPLED` without any."""
    starts, mask = group.offsets[:-1], group.loss_mask.view(np.bool_)
    if not len(starts):
        return []
    lowest = group.versions.view(np.uint32)
    if _some(apart := mask != sampled):  # mostly what is sampled is trained
        if _some(none := apart & mask):
            index = _sequence_of(group, int(np.flatnonzero(none)[0]))
            raise WireError(f"{_who(group, index)}: versions: a trained token has no version")
        lowest = np.where(mask, lowest, _NO_VERSION)
    least: list[int] = np.minimum.reduceat(lowest, starts).view(np.int32).tolist()
    return least


def _check_not_sampled(group: ReceivedGroup, sampled: npt.NDArray[np.bool_]) -> None:
    starts = group.offsets[:-1]
    if _some(first := sampled[starts]):
        index = int(np.flatnonzero(first)[0])
        raise WireError(
            f"{_who(group, index)}: versions has {group.versions[starts[index]]} at token 0; expected {NOT_SAMPLED}, "
            "since no policy samples the first token"
        )
    if _some(wrong := (group.logprobs != 0) > sampled):
        expected = f"0 where no policy sampled, as version {NOT_SAMPLED} says"
        raise _error(group, wrong, "logprobs", group.logprobs, expected)


def _check_sparse(group: ReceivedGroup, name: str, given: SparseValues) -> None:
    fine = group.versions[given.positions] != NOT_SAMPLED
    expected = "values of sampled tokens"
    if given.values.dtype.kind == "f":
        # A comparison with NaN is false.
        fine &= np.abs(given.values) <= LARGEST_REWARD
        expected = f"values within ±{LARGEST_REWARD:g}, of sampled tokens"
    if not fine.all():
        wrong = np.zeros(len(group.tokens), np.bool_)
        wrong[given.positions[~fine]] = True
        raise _error(group, wrong, name, given.dense(len(wrong)), expected)


def check_limits(group: ReceivedGroup, limits: Mapping[str, ModelLimits]) -> None:
    """Reject (:class:`WireError`) a group with a token id, a length, experts or images beyond the limits of its
    policy's model. ``limits`` has every policy of the group."""
    sequences = group.header.sequences
    if not sequences:
        return
    if group.images:
        check_images(group, {name: limit.images for name, limit in limits.items()})
    for policy in group.routing.shapes if group.routing is not None else ():
        check_routing(group, policy, limits[policy].experts if policy in limits else None)
    least = min(limits[policy].vocabulary for policy in {s.policy for s in sequences})
    largest = None
    if _most(group.tokens) >= least:
        largest = np.maximum.reduceat(group.tokens, group.offsets[:-1]).tolist()
    for index, sequence in enumerate(sequences):
        limit = limits[sequence.policy]
        if sequence.length > limit.positions:
            raise WireError(
                f"{_who(group, index)}: length is {sequence.length}; the context of its model has "
                f"{limit.positions} tokens"
            )
        if largest is not None and largest[index] >= limit.vocabulary:
            raise WireError(
                f"{_who(group, index)}: tokens has the id {largest[index]}; ids of its model are below "
                f"{limit.vocabulary}"
            )


def _error(
    group: ReceivedGroup, wrong: npt.NDArray[np.bool_], field: str, values: Column, expected: str
) -> WireError:
    places = np.flatnonzero(wrong)
    first = int(places[0])
    index = _sequence_of(group, first)
    more = f", and {places.size - 1} more of the group" if places.size > 1 else ""
    return WireError(
        f"{_who(group, index)}: {field} has {values[first]} at token {first - int(group.offsets[index])}"
        f"{more}; expected {expected}"
    )


def _sequence_of(group: ReceivedGroup, token: int) -> int:
    """The sequence that a token of the group belongs to."""
    return int(np.searchsorted(group.offsets, token, side="right")) - 1


def _who(group: ReceivedGroup, index: int) -> str:
    policy = group.header.sequences[index].policy
    return f"RaaS {group.header.raas!r:.80}, sequence {index} of policy {policy!r:.80}"
