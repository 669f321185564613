"""Partial groups: what a group deadline cut off is rolled out by another task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from astraflow_runtime.dataflow.journal.entries import BodyLocation
from astraflow_wire import episode_metrics, sparse
from astraflow_wire.experts import routing
from astraflow_wire.frames import encode_frame
from astraflow_wire.groups import GroupHeader, ReceivedGroup, SequenceHeader
from astraflow_wire.images import table as image_table


@dataclass(frozen=True, slots=True, eq=False)
class PartialGroup:
    """Some trajectories of a group; ``body``: where the journal has them (``None``: nowhere)."""

    group: ReceivedGroup
    body: BodyLocation | None


def merge(parts: Sequence[ReceivedGroup]) -> bytes:
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
    told = all(len(p.header.episodes) == p.header.trajectories for p in parts)
    given = sparse.joined((part.sparse, len(part.tokens)) for part in parts)
    shapes, routed = routing.joined(parts)
    table, files = image_table.encode(
        image_table.of_runs((part.images, 0, len(part.tokens)) for part in parts)
    )
    header = GroupHeader(
        raas=last.raas,
        task=last.task,
        prompt_id=last.prompt_id,
        sequences=sequences,
        trajectories=trajectories,
        rejected=sum(part.header.rejected for part in parts),
        metrics=episode_metrics.joined((p.header.trajectories, p.header.metrics) for p in parts),
        late=last.late,
        incarnation=last.incarnation,
        sparse=list(given),
        episodes=[text for part in parts for text in part.header.episodes] if told else [],
        spans=last.spans,
        routing=shapes,
        images=table,
    )
    columns = zip(*(part.columns for part in parts), strict=True)
    return encode_frame(header, [*columns, *sparse.buffers(given), *routed, *files])
