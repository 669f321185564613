"""Sequences of earlier groups of a prompt, which engines take drafts from: the message that asks for them, and their frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WireError
from astraflow_wire.frames import Frame, decode_header, encode_frame
from astraflow_wire.limits import Count, DraftBytes, DraftPolicies, DraftSizes, Name
from astraflow_wire.messages import Message

TOKEN_BYTES = 5
"""Bytes of a token: its id, int32, and whether it was sampled, uint8."""


class AskDrafts(Message, frozen=True):
    """``POST /v1/tasks/drafts``: a RaaS asks for sequences of earlier groups of the prompt of a training task that it has
    leased, from the rollout store of the run: of the newest groups, ``most_bytes`` of each policy at most, 5 for each token,
    and 4 MB in all. There are none if the store has no group of the prompt, or the RaaS has no such task (any longer).
    404: this RaaS or this incarnation of it is not known: it must register (again).
    409: another process has registered as this RaaS since; the reason says when.
    409: the run stores no rollouts."""

    raas: Name
    task: Name
    most_bytes: DraftBytes
    incarnation: Count = 0


class DraftsHeader(msgspec.Struct, frozen=True, kw_only=True, tag="drafts"):
    """Reply: ``policies`` and ``lengths`` of the sequences, oldest group first. Buffers: tokens int32, sampled uint8 (1: a
    policy sampled the token), each concatenated."""

    policies: DraftPolicies
    lengths: DraftSizes


class PastSequence(NamedTuple):
    """A sequence of an earlier group: ``tokens`` int32 ``[T]``; ``sampled`` bool ``[T]``, true where ``policy`` sampled it."""

    policy: str
    tokens: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.bool_]


def encode_drafts(sequences: Sequence[PastSequence]) -> bytes:
    """The reply as a frame."""
    header = DraftsHeader(
        policies=[each.policy for each in sequences],
        lengths=[len(each.tokens) for each in sequences],
    )
    tokens = [np.ascontiguousarray(each.tokens, "<i4") for each in sequences]
    sampled = [np.ascontiguousarray(each.sampled, "u1") for each in sequences]
    return encode_frame(header, [tokens, sampled])


def decode_drafts(body: bytes) -> list[PastSequence]:
    """The sequences of a reply, views into it; :class:`astraflow_core.errors.WireError` if it is malformed."""
    frame = Frame(body)
    header = decode_header(frame, DraftsHeader)
    frame.check_count(2)
    if len(header.policies) != len(header.lengths):
        raise WireError(
            f"{len(header.policies)} policies of {len(header.lengths)} sequences; expected one for each"
        )
    total = sum(header.lengths)
    tokens = frame.array(0, "<i4", total)
    sampled = frame.array(1, "u1", total).astype(np.bool_)
    ends = np.cumsum(header.lengths, dtype=np.int64).tolist()
    return [
        PastSequence(policy, tokens[end - length : end], sampled[end - length : end])
        for policy, length, end in zip(header.policies, header.lengths, ends, strict=True)
    ]
