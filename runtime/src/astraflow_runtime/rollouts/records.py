"""The contents of a rollout store: records, each a JSON document, and the lines of the index.

Arrays are base64 of their raw values, little-endian; a property of the same name returns the NumPy
array.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

FORMAT = 1
"""Version of the format; a reader rejects a higher one."""

Verdict = Literal["accepted", "rejected"]


def raw(values: npt.NDArray[Any], dtype: str) -> bytes:
    """The values of an array as little-endian ``dtype``, such as ``"<f4"``."""
    return np.ascontiguousarray(values, dtype=np.dtype(dtype)).tobytes()


def digest(tokens: bytes) -> str:
    """The digest of the raw token ids of a sequence: xxh3-64, hexadecimal."""
    return xxhash.xxh3_64_hexdigest(tokens)


class StoredTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn: ``text`` as the model of ``policy`` read or wrote it. ``role``: ``prompt``, ``assistant`` or
    ``environment``. It is the tokens from ``start`` to before ``end`` of sequence ``sequence`` of its trajectory."""

    role: str
    policy: str
    text: str
    sequence: int
    start: int
    end: int


class StoredCompletion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completion as the reward saw it: its ``text``, why it ended, and its tokens, int32."""

    policy: str
    text: str
    finish_reason: str
    raw_tokens: bytes = msgspec.field(name="tokens", default=b"")

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """int32 ``[T]``."""
        return np.frombuffer(self.raw_tokens, "<i4")


class StoredSequence(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sequence as its RaaS pushed it; see :class:`astraflow_core.types.Sequence`. ``own_reward``:
    ``reward`` belongs to this sequence alone. ``truncated`` by the token limit. ``sparse``: column
    → [position, value] where it is not zero.
    """

    policy: str
    reward: float
    raw_tokens: bytes = msgspec.field(name="tokens")
    raw_loss_mask: bytes = msgspec.field(name="loss_mask")
    raw_logprobs: bytes = msgspec.field(name="logprobs")
    raw_versions: bytes = msgspec.field(name="versions")
    own_reward: bool = False
    truncated: bool = False
    sparse: dict[str, list[tuple[int, float]]] = {}

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids, int32 ``[T]``."""
        return np.frombuffer(self.raw_tokens, "<i4")

    @property
    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """True where the token is trained, bool ``[T]``."""
        return np.frombuffer(self.raw_loss_mask, np.bool_)

    @property
    def logprobs(self) -> npt.NDArray[np.float32]:
        """Log-probs of the engine in nats, float32 ``[T]``; 0 where not sampled."""
        return np.frombuffer(self.raw_logprobs, "<f4")

    @property
    def versions(self) -> npt.NDArray[np.int32]:
        """Version that sampled each token, int32 ``[T]``; -1 where not sampled."""
        return np.frombuffer(self.raw_versions, "<i4")

    @property
    def digest(self) -> str:
        """The digest of its token ids."""
        return digest(self.raw_tokens)


class StoredTrajectory(msgspec.Struct, frozen=True, omit_defaults=True):
    """An episode: its ``rewards`` by policy, ``metrics`` of the episode (the parts of a reward among them), and its
    sequences. ``turns`` and ``completions``: ``None`` if its RaaS sent no text."""

    rewards: dict[str, float]
    sequences: list[StoredSequence]
    metrics: dict[str, float] = {}
    turns: list[StoredTurn] | None = None
    completions: list[StoredCompletion] | None = None


class StoredVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict on the group for ``policy``: kept if ``reason`` is empty, else rejected ``by`` a
    data policy (empty: by the dataflow itself). ``shadow_rejections``: (shadow, its reason).
    ``kept``: sequences of it that became rows."""

    policy: str
    by: str = ""
    reason: str = ""
    kept: int = 0
    shadow_rejections: list[tuple[str, str]] = []


class GroupRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="group", tag_field="kind"):
    """A whole group, as it was pushed. ``number``: its number in the run, that of its task and in ``Batch.group``;
    ``group``: the name of the task. ``time_s`` since 1970. ``newest``: policy → newest version
    then. ``rejected``: episodes that the workflow rejected; ``late``: those that the group deadline
    cut off. ``first_trajectory``: number in the run of the first of its ``trajectories``, which
    those of a batch have; -1 if no policy accepted it."""

    number: int
    group: str
    time_s: float
    raas: str
    prompt_id: str
    prompt_data: Any
    accepted: bool
    trajectories: list[StoredTrajectory]
    verdicts: list[StoredVerdict] = []
    newest: dict[str, int] = {}
    rejected: int = 0
    late: int = 0
    first_trajectory: int = -1
    format: int = FORMAT


class FailureRecord(
    msgspec.Struct, frozen=True, omit_defaults=True, tag="failure", tag_field="kind"
):
    """An attempt at a group that failed in ``raas``. ``environment``: the kind of failure, if an
    environment failed. ``fatal``: there is no further attempt. ``time_s`` since 1970.
    """

    number: int
    group: str
    time_s: float
    raas: str
    prompt_id: str
    prompt_data: Any
    error: str
    environment: str = ""
    fatal: bool = False
    attempt: int = 1
    format: int = FORMAT


class TrainedRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sequence of a batch: of the group ``number``, with the ``digest`` of its token ids, and
    what the trainer computed for it; ``trajectory`` is the number of its trajectory in the run.
    ``borrowed``: another policy sampled it.
    """

    number: int
    trajectory: int
    digest: str
    reward: float
    trained: int
    raw_advantages: bytes = msgspec.field(name="advantages")
    raw_trainer_logprobs: bytes | None = msgspec.field(name="trainer_logprobs", default=None)
    raw_reference_logprobs: bytes | None = msgspec.field(name="reference_logprobs", default=None)
    borrowed: bool = False
    raw_entropies: bytes | None = msgspec.field(name="entropies", default=None)

    @property
    def advantages(self) -> npt.NDArray[np.float32]:
        """Advantage of each token, float32 ``[T]``."""
        return np.frombuffer(self.raw_advantages, "<f4")

    @property
    def trainer_logprobs(self) -> npt.NDArray[np.float32] | None:
        """Log-probs of the trainer in nats at the start of the update, float32 ``[T]``, at trained
        tokens at least; ``None`` if they were not computed.
        """
        return _floats(self.raw_trainer_logprobs)

    @property
    def reference_logprobs(self) -> npt.NDArray[np.float32] | None:
        """Log-probs of the reference model in nats, float32 ``[T]``; ``None`` if the algorithm asked for none."""
        return _floats(self.raw_reference_logprobs)

    @property
    def entropies(self) -> npt.NDArray[np.float32] | None:
        """Entropy of the policy at each token in nats, float32 ``[T]``, at trained tokens; ``None`` if the loss needed none."""
        return _floats(self.raw_entropies)


def _floats(values: bytes | None) -> npt.NDArray[np.float32] | None:
    return None if values is None else np.frombuffer(values, "<f4")


class UpdateRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="update", tag_field="kind"):
    """The rows of a batch whose groups are stored: the batch was the ``step``-th update of ``policy``, of version
    ``version``. ``time_s`` since 1970."""

    policy: str
    batch: str
    step: int
    version: int
    time_s: float
    rows: list[TrainedRow]
    format: int = FORMAT


Record = GroupRecord | FailureRecord | UpdateRecord


class TrajectoryLine(msgspec.Struct, frozen=True, array_like=True):
    """The index line of a trajectory. ``tokens`` in all its sequences and ``sampled`` ones among
    them, ``turns``, ``versions`` lowest and highest (-1: none), names of the ``tools`` that were
    called."""

    rewards: dict[str, float]
    tokens: int
    sampled: int
    turns: int
    truncated: bool
    versions: tuple[int, int]
    tools: list[str] = []


class GroupLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="group", tag_field="kind"):
    """The index line of a :class:`GroupRecord`: its location, ``size`` bytes from ``offset`` in its
    segment. ``reason``: why no policy accepted it. ``first_trajectory``: as in the record.
    ``dropped``: records that were lost until then, in this process."""

    number: int
    group: str
    time_s: float
    raas: str
    prompt_id: str
    accepted: bool
    reason: str
    trajectories: list[TrajectoryLine]
    first_trajectory: int = -1
    offset: int = 0
    size: int = 0
    dropped: int = 0


class FailureLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="failure", tag_field="kind"):
    """A :class:`FailureRecord` in the index."""

    number: int
    group: str
    time_s: float
    raas: str
    prompt_id: str
    error: str
    environment: str = ""
    offset: int = 0
    size: int = 0
    dropped: int = 0


class UpdateLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="update", tag_field="kind"):
    """An :class:`UpdateRecord` in the index. ``rows``: group and trajectory of each."""

    policy: str
    batch: str
    step: int
    version: int
    time_s: float
    rows: list[tuple[int, int]]
    offset: int = 0
    size: int = 0
    dropped: int = 0


IndexLine = GroupLine | FailureLine | UpdateLine
