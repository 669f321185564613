"""Groups of which a group deadline cut something off, until the rest is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from astraflow_core.wire.frames import encode_frame
from astraflow_core.wire.groups import GroupHeader, ReceivedGroup, SequenceHeader


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some trajectories of a group; ``segment``: the file of bodies of the journal in which they lie (-1:
    none)."""

    group: ReceivedGroup
    segment: int


def joined(parts: Sequence[ReceivedGroup]) -> bytes:
    """The body of one group with the trajectories of all parts, in order; the rest of its header is the last
    part's."""
    sequences: list[SequenceHeader] = []
    trajectories = 0
    for part in parts:
        sequences += [
            structs.replace(sequence, trajectory=trajectories + sequence.trajectory)
            for sequence in part.header.sequences
        ]
        trajectories += part.header.trajectories
    last = parts[-1].header
    header = GroupHeader(
        raas=last.raas,
        task=last.task,
        prompt_id=last.prompt_id,
        sequences=sequences,
        trajectories=trajectories,
        rejected=sum(part.header.rejected for part in parts),
        late=last.late,
    )
    return encode_frame(header, list(zip(*(part.columns for part in parts), strict=True)))
