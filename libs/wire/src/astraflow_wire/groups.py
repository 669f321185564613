"""Groups on the wire: what a RaaS pushes; the dataflow keeps it verbatim in buffer and journal."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from itertools import accumulate
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType

from astraflow_core.types import Group, Images, Sequence, Trajectory
from astraflow_core.types.columns import Column
from astraflow_wire import sparse
from astraflow_wire.column_table import TOKEN_COLUMNS
from astraflow_wire.columns import check_columns
from astraflow_wire.episode_metrics import columns as metric_columns
from astraflow_wire.experts import routing
from astraflow_wire.experts.routing import PolicyRoutings
from astraflow_wire.frames import Frame, decode_header, encode_frame
from astraflow_wire.images import table as image_table
from astraflow_wire.images.table import ImageTable
from astraflow_wire.limits import (
    MAX_SEQUENCES,
    MAX_SPAN_S,
    MAX_SPANS,
    MAX_SPARSE,
    MAX_TURNS,
    EpisodeMetrics,
    GroupCount,
    Length,
    Name,
    PromptId,
    Version,
)

_RAW = {column.name: column.raw for column in TOKEN_COLUMNS}


class SequenceHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sequence: ``policy``, ``length`` in tokens, its ``reward``, ``trajectory`` it belongs to, ``truncated`` by
    the token limit, smallest version of its trained tokens (-1: none trained). ``own_reward``: the
    reward belongs to this sequence alone, as for a step, and is added to the others in the reward
    of the trajectory; else it is the reward of the trajectory, which counts once."""

    policy: Name
    length: Length
    reward: float
    trajectory: GroupCount
    truncated: bool
    min_version: Version
    own_reward: bool = False


class Turn(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One turn of an episode, for display: ``text`` as the model of ``policy`` read or wrote it.
    ``role``: ``prompt`` (what stood before the first sampled token), ``assistant`` (what was
    sampled), ``environment`` (what came in between, such as the answer of a tool), or ``omitted``
    (stands for turns that are left out)."""

    role: Name
    policy: Name
    text: str


class EpisodeTurn(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One turn of an episode that is stored: a :class:`Turn` with its whole text, which is that of the tokens from
    ``start`` to before ``end`` of number ``sequence`` of the trajectory's sequences."""

    role: Name
    policy: Name
    text: str
    sequence: GroupCount
    start: GroupCount
    end: GroupCount


class EpisodeCompletion(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A completion as the reward saw it. Its text and tokens are those of number ``turn`` of the turns, or (-1) ``text``
    and ``tokens``, little-endian int32."""

    policy: Name
    finish_reason: Name
    turn: Annotated[int, Meta(ge=-1, lt=1 << 31)]
    text: str = ""
    tokens: bytes = b""


class EpisodeText(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The text of an episode for the rollout store; without ``turns`` there is none."""

    turns: Annotated[list[EpisodeTurn], Meta(max_length=MAX_SEQUENCES)] = []
    completions: Annotated[list[EpisodeCompletion], Meta(max_length=MAX_SEQUENCES)] = []


class EpisodeSpan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What took time in number ``episode`` of a task's episodes: ``name`` is ``episode`` (all of it), ``generate`` (a request
    to the engine of ``policy``) or ``reward``. It began ``ago_s`` before its group was encoded and took ``took_s``: durations,
    since clocks of hosts differ."""

    name: Name
    episode: GroupCount
    policy: Name
    ago_s: Annotated[float, Meta(ge=0, le=MAX_SPAN_S)]
    took_s: Annotated[float, Meta(ge=0, le=MAX_SPAN_S)]


class GroupHeader(
    msgspec.Struct, frozen=True, tag="group", kw_only=True, forbid_unknown_fields=True
):
    """Header of a pushed group; the buffers are its columns, over all sequences in order. For evaluation tasks
    ``eval_set`` is set. ``rejected``: episodes that the workflow rejected; ``late``: those aborted at the group
    deadline. ``metrics``: name → value for each trajectory, null where it has none of that name; they are averaged
    over the episodes of a batch. ``turns``: one episode of the group, for display. ``sparse``: names of the sparse
    columns that the group has, in the order of their table. ``episodes``: the text of each trajectory if the rollout
    store keeps the group; else none. ``spans``: those of a prompt that a tracker traces. ``routing``, if the experts of
    tokens were recorded: policy → layers with experts, experts of a token in each, and bytes of an id. The last buffer
    but that of images has the ids of each token of each sequence of these policies, all bits set where none were
    recorded. ``images``, if policies saw some: places of images and, in the last buffer, each image file once; places count the
    tokens of all sequences.

    400: the columns contradict the header: their number and sizes, another ``min_version``; or a metric has another
    number of values than there are trajectories.
    400: values that no sampling gives: a mask that is neither 0 nor 1, a token id below 0 or not of the model of its
    policy, a trained token or the first of a sequence with or without a version as it must not be, a log-prob that is
    not from -44 to 0 (0.001 above is rounding) or, where the version is -1, not 0, a reward beyond ±1e14, a value of
    a sparse column beyond it or of a token that no policy sampled, a sequence longer than the model's context, a
    negative count, experts that the model of the policy does not have or that the run does not record.
    400: images of a policy without ``images = true``, with another digest than their bytes, of another format than
    PNG, JPEG and WebP, of more than 4 MiB or 16,777,216 pixels, more than 64 of a sequence, over tokens that were sampled or
    are not those that the model has for an image.
    400: the group does not fit its task: another prompt or evaluation set, more trajectories, rejected and late ones
    together than requested.
    400: a version that was never announced or, in evaluation, not the pinned one.
    400: a sequence of a policy that the run does not have.
    409: the sender does not hold this task (any longer); the reason says why.
    404: this incarnation is not known: it must register (again).
    409: another process has registered as this RaaS since; the reason says when.
    503: the dataflow was restarted and must first learn from this RaaS which versions it serves: try again after the
    next heartbeat."""

    raas: Name
    task: Name
    prompt_id: PromptId
    sequences: Annotated[list[SequenceHeader], Meta(max_length=MAX_SEQUENCES)]
    trajectories: GroupCount
    rejected: GroupCount = 0
    eval_set: Name = ""
    metrics: EpisodeMetrics = {}
    turns: Annotated[list[Turn], Meta(max_length=MAX_TURNS)] = []
    late: GroupCount = 0
    incarnation: GroupCount = 0
    sparse: Annotated[list[Name], Meta(max_length=MAX_SPARSE)] = []
    episodes: Annotated[list[EpisodeText], Meta(max_length=MAX_SEQUENCES)] = []
    spans: Annotated[list[EpisodeSpan], Meta(max_length=MAX_SPANS)] = []
    routing: PolicyRoutings | UnsetType = UNSET
    images: ImageTable | UnsetType = UNSET


class ReceivedGroup:
    """A group as it lies in the received bytes: header, a read-only view over all tokens of each of
    :data:`TOKEN_COLUMNS` by its name, the bytes of these ``columns`` in their order, its ``sparse`` ones, the
    ``routing`` of its tokens, if it was recorded, and its ``images``, whose places count all tokens."""

    __slots__ = (
        "body", "columns", "header", "images", "offsets", "routing", "sparse", *(column.name for column in TOKEN_COLUMNS),
    )  # fmt: skip
    sparse: sparse.Sparse
    routing: routing.GroupRouting | None
    tokens: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]

    def __init__(self, body: bytes | memoryview) -> None:
        frame = Frame(body)
        self.body = body
        self.header = decode_header(frame, GroupHeader)
        lengths = [sequence.length for sequence in self.header.sequences]
        self.offsets: npt.NDArray[np.int64] = np.array([0, *accumulate(lengths)], np.int64)
        total = int(self.offsets[-1])
        after = len(_RAW) + 2 * len(self.header.sparse)
        self.routing = routing.read_group(frame, after, self.header.routing, self)
        self.sparse = sparse.read(
            frame,
            len(_RAW),
            self.header.sparse,
            total,
            int(self.routing is not None) + int(self.header.images is not UNSET),
        )
        self.images: Images = image_table.decode(
            self.header.images, frame.buffers, self.offsets[1:].tolist()
        )
        for index, (name, dtype) in enumerate(_RAW.items()):
            setattr(self, name, frame.array(index, dtype, total))
        self.columns = frame.buffers[: len(_RAW)]
        check_columns(self)


def _as_header(
    sequence: Sequence, trajectory: Trajectory, index: int, truncated: bool
) -> SequenceHeader:
    reward = sequence.reward if sequence.reward is not None else trajectory.rewards[sequence.policy]
    return SequenceHeader(
        sequence.policy,
        len(sequence.tokens),
        float(reward),
        index,
        truncated,
        sequence.min_version,
        sequence.reward is not None,
    )


def encode_group(
    group: Group,
    raas: str,
    *,
    incarnation: int = 0,
    rejected: int = 0,
    late: int = 0,
    eval_set: str = "",
    turns: AbstractSequence[Turn] = (),
    episodes: AbstractSequence[EpisodeText] = (),
    spans: AbstractSequence[EpisodeSpan] = (),
) -> bytes:
    """The push body of a group; every trajectory must have a reward for each of its policies. ``incarnation``: the
    number that ``raas`` got when it registered; without it the body is not for a push. Metrics of trajectories and
    ``turns`` beyond the bounds of a message are left out. ``episodes``: the text of each trajectory, or none."""
    headers: list[SequenceHeader] = []
    sequences: list[Sequence] = []
    for index, trajectory in enumerate(group.trajectories):
        ends = [completion.finish_reason == "length" for completion in trajectory.completions]
        for position, sequence in enumerate(trajectory.sequences):
            cut = ends[position] if len(ends) == len(trajectory.sequences) else any(ends)
            headers.append(_as_header(sequence, trajectory, index, cut))
            sequences.append(sequence)
    given = sparse.joined((sparse.of_sequence(s), len(s.tokens)) for s in sequences)
    shapes, routed = routing.of_sequences(sequences)
    table, files = image_table.encode(image_table.of_sequences(sequences))
    header = GroupHeader(
        raas=raas,
        task=group.task,
        prompt_id=group.prompt_id,
        sequences=headers,
        trajectories=len(group.trajectories),
        rejected=rejected,
        eval_set=eval_set,
        metrics=metric_columns(group.trajectories),
        turns=list(turns)[:MAX_TURNS],
        late=late,
        incarnation=incarnation,
        sparse=list(given),
        episodes=list(episodes),
        spans=list(spans),
        routing=shapes,
        images=table,
    )

    def values(column: Column) -> npt.NDArray[np.generic]:
        if not sequences:
            return np.empty(0, column.raw)
        parts = [getattr(sequence, column.name) for sequence in sequences]
        return np.concatenate(parts).astype(column.raw, copy=False)

    columns = [values(column) for column in TOKEN_COLUMNS]
    return encode_frame(header, [*columns, *sparse.buffers(given), *routed, *files])
