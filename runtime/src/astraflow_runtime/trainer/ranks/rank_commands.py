"""The messages between rank 0 of a trainer and the other ranks."""

from __future__ import annotations

import msgspec


class SetUp(msgspec.Struct, frozen=True, tag="set_up"):
    """Load the model, then the checkpoint in this folder (empty: none). The trainer has registered as
    ``incarnation``."""

    checkpoint: str
    incarnation: int = 0


class AdoptCommand(msgspec.Struct, frozen=True, tag="adopt"):
    """Continue with the weights in this folder, counting ``updates`` as done."""

    folder: str
    updates: int


class UpdateCommand(msgspec.Struct, frozen=True, tag="update"):
    """Train on the batch whose frame follows."""

    step: int


class ProbeLast(msgspec.Struct, frozen=True, tag="probe"):
    """Probe the batch trained on last, under the weights that become ``version``."""

    version: int


class Export(msgspec.Struct, frozen=True, tag="export"):
    """Take part in the export of the weights."""


class PublishShards(msgspec.Struct, frozen=True, tag="publish_shards"):
    """Publish this rank's blocks of ``version``."""

    version: int
    derives_from: int | None


class RetainShards(msgspec.Struct, frozen=True, tag="retain_shards"):
    """Release all versions except the newest and these."""

    versions: list[int]


class Save(msgspec.Struct, frozen=True, tag="save"):
    """Write this rank's part of a checkpoint."""

    folder: str


class FinishSave(msgspec.Struct, frozen=True, tag="finish_save"):
    """Reply whether this rank's part of the checkpoint is written; ``wait`` waits for it."""

    wait: bool


class SaveModel(msgspec.Struct, frozen=True, tag="save_model"):
    """Take part in writing a Hugging Face folder."""

    folder: str


class TakeDevices(msgspec.Struct, frozen=True, tag="take_devices"):
    """Acquire the shared devices, or release them to the engines."""

    ours: bool


class End(msgspec.Struct, frozen=True, tag="end"):
    """Exit."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """A result within the operation follows: float32 values of rank 0, or the values of all ranks."""


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """Rank 0 abandoned the operation: expect no results."""


class RankPing(msgspec.Struct, frozen=True, tag="ping"):
    """A heartbeat."""


Order = (
    SetUp
    | AdoptCommand
    | UpdateCommand
    | ProbeLast
    | Export
    | PublishShards
    | RetainShards
    | Save
    | FinishSave
    | SaveModel
    | TakeDevices
    | End
)
ToRank = Order | Result | Abandon | RankPing


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A rank has connected: ``rank`` of ``size``."""

    rank: int
    size: int


class RankReply(msgspec.Struct, frozen=True, tag="said"):
    """A rank's value for all others within the operation."""

    body: bytes


class CommandDone(msgspec.Struct, frozen=True, tag="done"):
    """The operation succeeded; ``holds`` is its boolean result, if it has one."""

    holds: bool = True


class CommandFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The operation raised. ``not_finite``: the loss was not finite, on every rank, and no step was
    made; ``user``: an error of the user.
    """

    error: str
    not_finite: bool = False
    user: bool = False


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The reply to :class:`End`, distinct from a late reply to an earlier command."""


Answer = CommandDone | CommandFailed
FromRank = Answer | Left | Hello | RankReply
