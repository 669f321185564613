"""What rank 0 of a trainer tells the others, and what they say."""

from __future__ import annotations

import msgspec


class SetUp(msgspec.Struct, frozen=True, tag="set_up"):
    """Load the model, then the checkpoint in this folder (empty: none). The trainer has registered as
    ``incarnation``."""

    checkpoint: str
    incarnation: int = 0


class UpdateCommand(msgspec.Struct, frozen=True, tag="update"):
    """Train on the batch whose frame follows."""

    step: int


class ProbeLast(msgspec.Struct, frozen=True, tag="probe"):
    """Probe the batch trained on last."""


class Export(msgspec.Struct, frozen=True, tag="export"):
    """Take part in the export of the weights."""


class PublishShards(msgspec.Struct, frozen=True, tag="publish_shards"):
    """Publish this rank's blocks of ``version``."""

    version: int
    derives_from: int | None


class RetainShards(msgspec.Struct, frozen=True, tag="retain_shards"):
    """Let go of all versions but the newest and these."""

    versions: list[int]


class Save(msgspec.Struct, frozen=True, tag="save"):
    """Write this rank's part of a checkpoint."""

    folder: str


class FinishSave(msgspec.Struct, frozen=True, tag="finish_save"):
    """Say whether this rank's part of the checkpoint is written; with ``wait``, when it is."""

    wait: bool


class SaveModel(msgspec.Struct, frozen=True, tag="save_model"):
    """Take part in writing a Hugging Face folder."""

    folder: str


class TakeDevices(msgspec.Struct, frozen=True, tag="take_devices"):
    """Take the devices that are shared, or leave them to the engines."""

    ours: bool


class End(msgspec.Struct, frozen=True, tag="end"):
    """There is nothing more to do."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """What rank 0 found within the operation follows: float32 that it computed, or what all ranks said."""


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """Rank 0 gave the operation up: expect no results of it."""


class RankPing(msgspec.Struct, frozen=True, tag="ping"):
    """Nothing; sent to see whether somebody is there."""


Order = (
    SetUp
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
    """A rank is there; ``rank`` of ``size``."""

    rank: int
    size: int


class RankReply(msgspec.Struct, frozen=True, tag="said"):
    """What a rank has to say to all others within the operation."""

    body: bytes


class CommandDone(msgspec.Struct, frozen=True, tag="done"):
    """The operation ended well; ``holds`` is its answer to a question with yes or no."""

    holds: bool = True


class CommandFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The operation raised. ``not_finite``: no step was made, as on every other rank; ``user``: the user can
    fix it."""

    error: str
    not_finite: bool = False
    user: bool = False


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The answer to :class:`End`, which is not that to an earlier order that comes late."""


Answer = CommandDone | CommandFailed
FromRank = Answer | Left | Hello | RankReply
