"""Rows and groups of an image. Each is stored once, however many lists it is in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
from msgspec.structs import replace

from astraflow_core.types import BufferedRow
from astraflow_runtime.dataflow.image.schema import BatchImage, GroupImage, RowImage
from astraflow_runtime.dataflow.journal.entries import BodyLocation
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.dataflow.row_source import SourcedRows
from astraflow_runtime.dataflow.rows.rows import GroupRewards, LoggedGroup, Row, rewards_of
from astraflow_runtime.dataflow.rows.statistics import GroupStatistics, group_statistics
from astraflow_runtime.dataflow.rows.stream import ServedBatch
from astraflow_wire.groups import ReceivedGroup


class SavedRows:
    """Collects the rows and groups of an image. ``items``: id of a row → its item, if that may have changed since."""

    def __init__(self, items: Mapping[int, BufferedRow]) -> None:
        self._items = items
        self.groups: list[GroupImage] = []
        self.rows: list[RowImage] = []
        self._groups: dict[BodyLocation, int] = {}
        self._rows: dict[int, int] = {}

    def group(self, received: ReceivedGroup, body: BodyLocation | None) -> int:
        """The place of a group."""
        assert body is not None, "a run without a journal has no image"
        place = self._groups.get(body)
        if place is None:
            place = self._groups[body] = len(self.groups)
            header = replace(received.header, turns=[], episodes=[], spans=[])
            self.groups.append(GroupImage(header, body))
        return place

    def row(self, row: Row) -> int:
        """The place of a row."""
        place = self._rows.get(id(row))
        if place is None:
            of = self.group(row.received, row.body)
            trained = self.groups[of].trained
            if row.policy not in trained:
                trained[row.policy] = row.siblings.trained.tolist()
            place = self._rows[id(row)] = len(self.rows)
            self.rows.append(
                RowImage(
                    of=of,
                    index=row.index,
                    place=row.place,
                    arrival=row.item.arrival,
                    times_served=self._items.get(id(row), row.item).times_served,
                    group=row.group,
                    trajectory=row.trajectory,
                )
            )
        return place

    def all(self, rows: Iterable[Row]) -> list[int]:
        """The places of rows."""
        return [self.row(row) for row in rows]

    def batch(self, batch: ServedBatch) -> BatchImage:
        """A served batch."""
        return BatchImage(
            id=batch.id,
            version=batch.version,
            rows=self.all(batch.rows),
            first_served=batch.first_served,
            asked=batch.asked,
            again=batch.again,
            source=batch.sourced.source,
            source_version=batch.sourced.version,
            sourced=self.all(batch.sourced.rows),
        )


class RestoredRows:
    """The rows and groups of an image, whose bodies ``reader`` reads when they are needed."""

    def __init__(
        self, groups: list[GroupImage], rows: list[RowImage], reader: JournalReader
    ) -> None:
        self.bodies = [group.body for group in groups]
        self.groups = [
            LoggedGroup(group.header, partial(reader.body, group.body)) for group in groups
        ]
        self._shares: dict[tuple[int, str], tuple[GroupRewards, GroupStatistics]] = {}
        self._trained = [group.trained for group in groups]
        self._rows = [self._restored(row) for row in rows]

    def all(self, places: Iterable[int]) -> list[Row]:
        """The rows at these places."""
        return [self._rows[place] for place in places]

    def batch(self, image: BatchImage) -> ServedBatch:
        """A served batch."""
        sourced = SourcedRows(image.source, image.source_version, tuple(self.all(image.sourced)))
        return ServedBatch(
            id=image.id,
            version=image.version,
            rows=tuple(self.all(image.rows)),
            first_served=image.first_served,
            asked=image.asked,
            again=image.again,
            sourced=sourced,
        )

    def _restored(self, row: RowImage) -> Row:
        received = self.groups[row.of]
        header = received.header.sequences[row.index]
        siblings, statistics = self._share(row.of, header.policy)
        item = BufferedRow(
            arrival=row.arrival,
            prompt_id=received.header.prompt_id,
            min_version=header.min_version,
            length=header.length,
            reward=header.reward,
            group_size=statistics.size,
            group_mean=statistics.mean,
            group_std=statistics.std,
            times_served=row.times_served,
        )
        return Row(
            item,
            received,
            row.index,
            row.group,
            row.trajectory,
            int(siblings.trained[row.place]),
            siblings,
            row.place,
            self.bodies[row.of],
        )

    def _share(self, of: int, policy: str) -> tuple[GroupRewards, GroupStatistics]:
        if (found := self._shares.get((of, policy))) is None:
            header, trained = self.groups[of].header, self._trained[of][policy]
            siblings = rewards_of(header, policy, np.array(trained, dtype=np.int32))
            found = self._shares[of, policy] = (siblings, group_statistics(siblings.rewards))
        return found
