"""The experts that were chosen for the tokens of groups and batches, on the wire: one buffer, present if the header
states its shape. All bits of a token without a record are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, UnsetType

from astraflow_core.errors import WireError
from astraflow_core.types import Sequence as TokenSequence
from astraflow_core.types.generation import RoutedExperts, not_recorded
from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.frames import Frame
from astraflow_wire.limits import MAX_POLICIES, Name

if TYPE_CHECKING:
    from astraflow_wire.groups import ReceivedGroup

Piece = npt.NDArray[Any] | memoryview


class RoutingShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of each token: the ids of ``top_k`` experts in each of ``layers``, unsigned integers of ``size`` bytes, 1 or 2."""

    layers: Annotated[int, Meta(ge=1, le=256)]
    top_k: Annotated[int, Meta(ge=1, le=64)]
    size: Annotated[int, Meta(ge=1, le=2)]

    @classmethod
    def of(cls, routed: RoutedExperts) -> RoutingShape:
        """The shape of an array."""
        _, layers, top_k = routed.shape
        return cls(layers, top_k, routed.dtype.itemsize)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token in the buffer."""
        return self.layers * self.top_k * self.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an id."""
        return np.dtype(f"<u{self.size}")

    def absent(self, tokens: int) -> Piece:
        """The bytes for ``tokens`` tokens without a record."""
        return np.full(tokens * self.bytes_per_token, 255, np.uint8)

    def array(self, data: Piece) -> RoutedExperts:
        """The ids of tokens, ``[tokens, layers, top_k]``, a view."""
        found: RoutedExperts = np.frombuffer(data, self.dtype).reshape(-1, self.layers, self.top_k)
        return found


PolicyRoutings = Annotated[dict[Name, RoutingShape], Meta(max_length=MAX_POLICIES)]
"""Policy → shape of each of its tokens."""


class GroupRouting:
    """The buffer of a received group. Of sequences whose policy is not in ``shapes`` it has nothing."""

    __slots__ = ("_data", "_offsets", "_starts", "shapes")

    def __init__(
        self, data: memoryview, shapes: Mapping[str, RoutingShape], group: ReceivedGroup
    ) -> None:
        self.shapes = shapes
        sequences = group.header.sequences
        sizes = [
            s.length * shapes[s.policy].bytes_per_token if s.policy in shapes else 0
            for s in sequences
        ]
        self._offsets = group.offsets
        self._starts = np.cumsum([0, *sizes], dtype=np.int64)
        if data.nbytes != self._starts[-1]:
            raise WireError(
                f"RaaS {group.header.raas!r:.80}: the experts of its tokens have {data.nbytes} bytes; "
                f"{self._starts[-1]} were expected"
            )
        self._data = data

    def between(self, start: int, end: int) -> memoryview:
        """The bytes of the whole sequences from token ``start`` to before ``end``."""
        first, after = np.searchsorted(self._offsets, (start, end))
        return self._data[self._starts[first] : self._starts[after]]


def read_group(
    frame: Frame, index: int, shapes: PolicyRoutings | UnsetType, group: ReceivedGroup
) -> GroupRouting | None:
    """That of a group, if its header has ``shapes``, from buffer ``index``."""
    if shapes is UNSET:
        return None
    if index >= len(frame.buffers):
        raise WireError(f"the frame has {len(frame.buffers)} buffers; number {index} is missing")
    return GroupRouting(frame.buffers[index], shapes, group)


def of_sequences(
    sequences: Sequence[TokenSequence],
) -> tuple[dict[str, RoutingShape] | UnsetType, list[list[Piece]]]:
    """Shapes and the buffer, in a list, of a group of these; none if no sequence has routed experts."""
    shapes = {
        s.policy: RoutingShape.of(s.routed_experts)
        for s in sequences
        if s.routed_experts is not None
    }
    if not shapes:
        return UNSET, []
    pieces: list[Piece] = []
    for each in sequences:
        if each.routed_experts is not None:
            pieces.append(np.ascontiguousarray(each.routed_experts))
        elif each.policy in shapes:
            pieces.append(shapes[each.policy].absent(len(each.tokens)))
    return shapes, [pieces]


def joined(
    groups: Sequence[ReceivedGroup],
) -> tuple[dict[str, RoutingShape] | UnsetType, list[list[Piece]]]:
    """The same of all sequences of several groups, of which each policy has one shape."""
    shapes = {n: s for g in groups if g.routing for n, s in g.routing.shapes.items()}
    if not shapes:
        return UNSET, []
    pieces = [
        _piece(group, sequence.policy, index, index + 1, shapes[sequence.policy])
        for group in groups
        for index, sequence in enumerate(group.header.sequences)
        if sequence.policy in shapes
    ]
    return shapes, [pieces]


def of_runs(
    policy: str, runs: Sequence[tuple[ReceivedGroup, int, int]]
) -> tuple[RoutingShape | UnsetType, list[list[Piece]]]:
    """Shape and the buffer, in a list, of a batch of ``policy`` whose tokens are ``runs``, (group, first token, end token)
    of whole sequences. Those that another policy sampled have no record: they went through another model."""
    shape = next(filter(None, (_shape(group, policy) for group, _, _ in runs)), None)
    if shape is None:
        return UNSET, []
    pieces: list[Piece] = []
    for group, start, end in runs:
        first, after = np.searchsorted(group.offsets, (start, end)).tolist()
        own = [sequence.policy == policy for sequence in group.header.sequences[first:after]]
        if all(own):
            pieces.append(_piece(group, policy, first, after, shape))
            continue
        for index, mine in enumerate(own, first):
            length = group.header.sequences[index].length
            pieces.append(
                _piece(group, policy, index, index + 1, shape) if mine else shape.absent(length)
            )
    return shape, [pieces]


def _shape(group: ReceivedGroup, policy: str) -> RoutingShape | None:
    return None if group.routing is None else group.routing.shapes.get(policy)


def _piece(group: ReceivedGroup, policy: str, first: int, after: int, shape: RoutingShape) -> Piece:
    """Of the sequences from ``first`` to before ``after``, all of ``policy``."""
    start, end = int(group.offsets[first]), int(group.offsets[after])
    if group.routing is None or policy not in group.routing.shapes:
        return shape.absent(end - start)
    return group.routing.between(start, end)


def check_routing(group: ReceivedGroup, policy: str, expected: ExpertLayers | None) -> None:
    """Reject (:class:`WireError`) what a model with the ``expected`` experts cannot have chosen, and any choice if the run
    does not record those of ``policy`` (``None``)."""
    routing, shape = group.routing, _shape(group, policy)
    if routing is None or shape is None:
        return
    who = f"RaaS {group.header.raas!r:.80}: routed_experts of policy {policy!r:.80}"
    if expected is None:
        raise WireError(f"{who} are not recorded in this run, which has not set router_replay")
    wanted = RoutingShape(expected.layers, expected.top_k, expected.dtype.itemsize)
    if shape != wanted:
        raise WireError(
            f"{who} are {shape.dtype.name} of {shape.layers} layers and {shape.top_k} experts for each token; "
            f"expected {wanted.dtype.name} of {wanted.layers} layers and {wanted.top_k} experts, as its model has"
        )
    for index, sequence in enumerate(group.header.sequences):
        if sequence.policy != policy:
            continue
        start, end = group.offsets[index : index + 2].tolist()
        ids = shape.array(routing.between(start, end))
        wrong = (ids >= expected.experts) & (ids != not_recorded(shape.dtype))
        if wrong.any():
            token, layer, _ = np.argwhere(wrong)[0].tolist()
            raise WireError(
                f"{who}, sequence {index}: expert {ids[wrong][0]} at token {token}, layer {layer}; its model has experts "
                f"0 to {expected.experts - 1}"
            )
