"""Groups on the wire: what a RaaS pushes and the dataflow keeps, verbatim, in buffer and log."""

from __future__ import annotations

import math
from collections.abc import Sequence as AbstractSequence

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WireError
from astraflow_core.types import Group, Sequence, Trajectory
from astraflow_core.wire.frames import Frame, decode_header, encode_frame

MAX_SEQUENCES = 65536


class SequenceHeader(msgspec.Struct, frozen=True, array_like=True):
    """One sequence: ``policy``, ``length`` in tokens, its own ``reward`` (the trajectory's, unless the
    workflow gave it one), ``trajectory`` it belongs to, ``truncated`` by the token limit, smallest version
    of its trained tokens (-1: none trained)."""

    policy: str
    length: int
    reward: float
    trajectory: int
    truncated: bool
    min_version: int


class GroupHeader(msgspec.Struct, frozen=True, tag="group", kw_only=True):
    """Header of a pushed group; the buffers are, over all sequences in order, tokens int32, loss mask
    uint8, log-probs float32, versions int32. For evaluation tasks ``eval_set`` is set. ``rejected``
    episodes were so by the workflow, ``late`` ones aborted at the group deadline.

    400: the columns contradict the header: their sizes, a mask that is neither 0 nor 1, a trained token
    without a version or a finite log-prob, another ``min_version``.
    400: the group does not fit its task: another prompt or evaluation set, more trajectories than asked for.
    400: a version that was never announced or, in evaluation, not the pinned one.
    400: a sequence of a policy that the run has not.
    409: the sender does not hold this task (any more); the reason says why.
    """

    raas: str
    task: str
    prompt_id: str
    sequences: list[SequenceHeader]
    trajectories: int
    rejected: int = 0
    eval_set: str = ""
    metrics: dict[str, float] = {}
    texts: list[str] = []
    late: int = 0


class ReceivedGroup:
    """A group as it lies in the received bytes: header, read-only column views over all tokens, and the bytes of
    these ``columns`` in their order."""

    __slots__ = (
        "body", "columns", "header", "logprobs", "loss_mask", "offsets", "tokens", "versions",
    )  # fmt: skip

    def __init__(self, body: bytes | memoryview) -> None:
        frame = Frame(body)
        self.body = body
        self.header = decode_header(frame, GroupHeader)
        if len(self.header.sequences) > MAX_SEQUENCES:
            raise WireError(
                f"a group of {len(self.header.sequences)} sequences is over {MAX_SEQUENCES}"
            )
        lengths = [sequence.length for sequence in self.header.sequences]
        if any(length < 1 for length in lengths):
            raise WireError("a sequence without tokens")
        self.offsets: npt.NDArray[np.int64] = np.concatenate(
            [[0], np.cumsum(lengths, dtype=np.int64)]
        )
        total = int(self.offsets[-1])
        self.tokens = frame.array(0, np.int32, total)
        self.loss_mask = frame.array(1, np.uint8, total)
        self.logprobs = frame.array(2, np.float32, total)
        self.versions = frame.array(3, np.int32, total)
        self.columns = frame.buffers[:4]
        self._check()

    def _check(self) -> None:
        header, mask = self.header, self.loss_mask.astype(bool)
        if total_bad := int(np.count_nonzero(self.loss_mask > 1)):
            raise WireError(f"{total_bad} values of the loss mask are neither 0 nor 1")
        finite = np.isfinite(self.logprobs)
        if not finite.all() and not finite[mask].all():
            raise WireError("a trained token has a log-prob that is not finite")
        if mask[self.offsets[:-1]].any():
            raise WireError("the first token of a sequence cannot be trained")
        if not all(math.isfinite(sequence.reward) for sequence in header.sequences):
            raise WireError("a reward is not finite")
        far = np.iinfo(np.int32).max
        lowest = np.where(mask, self.versions, far)
        starts = self.offsets[:-1]
        found = np.minimum.reduceat(lowest, starts) if len(starts) else lowest
        if (found < 0).any():
            raise WireError("a trained token has no version")
        for sequence, version in zip(header.sequences, found.tolist(), strict=True):
            if sequence.min_version != (-1 if version == far else version):
                raise WireError(
                    f"a sequence says min_version {sequence.min_version}; its tokens {version}"
                )
            if not 0 <= sequence.trajectory < header.trajectories:
                raise WireError(f"a sequence names trajectory {sequence.trajectory}")


def _as_header(
    sequence: Sequence, trajectory: Trajectory, index: int, truncated: bool
) -> SequenceHeader:
    reward = sequence.reward if sequence.reward is not None else trajectory.rewards[sequence.policy]
    return SequenceHeader(
        sequence.policy, len(sequence.tokens), float(reward), index, truncated, sequence.min_version
    )


def encode_group(
    group: Group,
    raas: str,
    *,
    rejected: int = 0,
    late: int = 0,
    eval_set: str = "",
    metrics: dict[str, float] | None = None,
    texts: AbstractSequence[str] = (),
) -> bytes:
    """The push body of a group; every trajectory must have a reward for each of its policies."""
    headers: list[SequenceHeader] = []
    sequences: list[Sequence] = []
    for index, trajectory in enumerate(group.trajectories):
        ends = [completion.finish_reason == "length" for completion in trajectory.completions]
        for position, sequence in enumerate(trajectory.sequences):
            cut = ends[position] if len(ends) == len(trajectory.sequences) else any(ends)
            headers.append(_as_header(sequence, trajectory, index, cut))
            sequences.append(sequence)
    header = GroupHeader(
        raas=raas,
        task=group.task,
        prompt_id=group.prompt_id,
        sequences=headers,
        trajectories=len(group.trajectories),
        rejected=rejected,
        eval_set=eval_set,
        metrics=metrics or {},
        texts=list(texts),
        late=late,
    )

    def column(name: str, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        if not sequences:
            return np.empty(0, dtype)
        parts = [getattr(sequence, name) for sequence in sequences]
        return np.concatenate(parts).astype(dtype, copy=False)

    columns = [
        column("tokens", np.int32),
        column("loss_mask", np.uint8),
        column("logprobs", np.float32),
        column("versions", np.int32),
    ]
    return encode_frame(header, columns)
