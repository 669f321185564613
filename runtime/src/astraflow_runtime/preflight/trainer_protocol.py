"""The protocol between the doctor and the process of a trainer: frames over a ZeroMQ pair."""

from __future__ import annotations

import msgspec

from astraflow_engine_host.protocol import Failure
from astraflow_wire.frames import Frame, decode_header


def address_of(base: str, rank: int) -> str:
    """Where the doctor listens for a rank of the trainer."""
    return f"{base}-{rank}"


class TensorDigest(msgspec.Struct, frozen=True):
    """A tensor of a version: ``dtype`` by its safetensors name, xxh3-128 ``digest`` of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


class AskLogprobs(msgspec.Struct, frozen=True, tag="logprobs"):
    """``Trainer.logprobs`` of the current weights. Buffers: tokens int32 ``[N]``, lengths int32 ``[R]``,
    lengths of the prompts int32 ``[R]``."""

    temperature: float


class AskPublish(msgspec.Struct, frozen=True, tag="publish"):
    """Publish the weights as ``version``; ``garbled``: with the elements of every tensor in reverse order, so
    that an engine that loads them cannot give the same log-probs."""

    version: int
    garbled: bool = False


class AskClose(msgspec.Struct, frozen=True, tag="close"):
    """Exit."""


class TrainerReady(msgspec.Struct, frozen=True, tag="ready"):
    """The trainer is set up, or a rank other than the first has carried out its request."""


class Logprobs(msgspec.Struct, frozen=True, tag="logprobs"):
    """The buffer: float32 ``[N]``."""


class Published(msgspec.Struct, frozen=True, tag="published"):
    """The version can be fetched; ``tensors`` are the digests of what the trainer exports, computed
    on its side.
    """

    endpoints: tuple[str, ...]
    digest: str
    size: int
    tensors: list[TensorDigest]


class TrainerSideFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A request raised; or the start did, if there was no request yet."""

    failure: Failure


ToTrainer = AskLogprobs | AskPublish | AskClose
FromTrainer = TrainerReady | Logprobs | Published | TrainerSideFailed


def decode_to_trainer(frame: Frame) -> ToTrainer:
    """The header of a frame of the doctor. Raises :class:`WireError`, as the other does."""
    message: ToTrainer = decode_header(frame, ToTrainer)  # type: ignore[arg-type]
    return message


def decode_from_trainer(frame: Frame) -> FromTrainer:
    """The header of a frame of the trainer."""
    message: FromTrainer = decode_header(frame, FromTrainer)  # type: ignore[arg-type]
    return message
