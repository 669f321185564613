"""The texts of stored records, read without their arrays, and earlier search results."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astraflow_core.errors import UserError
from astraflow_runtime.rollouts.records import FORMAT, FailureLine, GroupLine
from astraflow_runtime.rollouts.segments import Segment, check_format, damaged, record_text

if TYPE_CHECKING:
    from astraflow_runtime.rollouts.filters import Filter
    from astraflow_runtime.rollouts.reader import RolloutEntry

HELD_TEXTS = 32
"""Texts that were looked for last, whose results are kept: some hundred bytes for each record that was read."""
Located = tuple[Segment, GroupLine | FailureLine]
_UNREADABLE = -1


class _Said(msgspec.Struct):
    text: str


class _TrajectoryTexts(msgspec.Struct):
    turns: list[_Said] | None = None
    completions: list[_Said] | None = None


class _GroupTexts(msgspec.Struct, tag="group", tag_field="kind"):
    trajectories: list[_TrajectoryTexts]
    format: int = FORMAT


class _FailureTexts(msgspec.Struct, tag="failure", tag_field="kind"):
    error: str
    prompt_data: Any = None
    format: int = FORMAT


_decoder = msgspec.json.Decoder(_GroupTexts | _FailureTexts)


@dataclass(frozen=True, slots=True)
class RolloutSearch:
    """What a search of bounded time has found. ``more``: there are more than requested. Of ``unread`` entries the
    texts were not read in that time; the same search continues with them. Those of ``damaged`` entries cannot be read."""

    entries: list[RolloutEntry]
    more: bool = False
    unread: int = 0
    damaged: int = 0


class RecordTexts:
    """Of the records in a ``folder``: they never change, so that nothing is read twice for the same text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: tuple[tuple[Segment, int], list[list[str]]] | None = None
        self._found: OrderedDict[str, dict[tuple[Segment, int], int]] = OrderedDict()

    def of(self, segment: Segment, line: GroupLine | FailureLine) -> list[list[str]]:
        """For each trajectory its texts; for a failed attempt one list with its error and its prompt.
        :class:`UserError` if the record no longer exists or is damaged."""
        key = segment, line.offset
        if self._last is None or self._last[0] != key:
            try:
                record = _decoder.decode(record_text(self._folder, segment, line))
            except msgspec.MsgspecError as error:
                raise damaged(self._folder, segment, line, error) from error
            check_format(self._folder, segment, record.format)
            if isinstance(record, _FailureTexts):
                texts = [[record.error, str(record.prompt_data)]]
            else:
                texts = [
                    [said.text for said in (*(each.turns or ()), *(each.completions or ()))]
                    for each in record.trajectories
                ]
            self._last = key, texts
        return self._last[1]

    def search(
        self,
        lines: Iterable[Located],
        entries_of: Callable[[GroupLine | FailureLine], list[RolloutEntry]],
        where: Filter,
        most: int,
        for_s: float,
    ) -> RolloutSearch:
        """See :meth:`astraflow_runtime.rollouts.reader.RolloutReader.search`. One record is read even if ``for_s`` is 0."""
        others, wanted = where.apart()
        until, read_one = time.monotonic() + for_s, False
        found: list[RolloutEntry] = []
        unread = unreadable = 0
        for segment, line in lines:
            entries = [entry for entry in entries_of(line) if others.matches(entry, list)]
            if wanted and entries:
                key = segment, line.offset
                if any(key not in self._found.get(text, ()) for text in wanted):
                    if read_one and time.monotonic() >= until:
                        unread += len(entries)
                        continue
                    read_one = True
                    self._look(wanted, segment, line)
                having = self._having(wanted, key)
                unreadable += len(entries) if having is None else 0
                entries = [
                    e for e in entries if having is not None and having >> max(e.index, 0) & 1
                ]
            found += entries
            if len(found) > most:
                break
        self._drop_oldest(wanted)
        return RolloutSearch(found[:most], len(found) > most, unread, unreadable)

    def forget(self, gone: Collection[Segment]) -> None:
        """Drop what is known of segments."""
        for text, found in self._found.items():
            self._found[text] = {key: bits for key, bits in found.items() if key[0] not in gone}

    def _having(self, wanted: Sequence[str], key: tuple[Segment, int]) -> int | None:
        """The trajectories with all ``wanted`` texts, as bits; ``None``: the record cannot be read."""
        each = [self._found[text][key] for text in wanted]
        return None if _UNREADABLE in each else reduce(and_, each)

    def _look(self, wanted: Sequence[str], segment: Segment, line: GroupLine | FailureLine) -> None:
        """Note which trajectories have which text; a failed attempt counts as one."""
        try:
            folded = [[text.casefold() for text in texts] for texts in self.of(segment, line)]
        except UserError:
            folded = None
        for text in wanted:
            having = (
                _UNREADABLE
                if folded is None
                else sum(
                    1 << number
                    for number, texts in enumerate(folded)
                    if any(text in t for t in texts)
                )
            )
            self._found.setdefault(text, {})[segment, line.offset] = having

    def _drop_oldest(self, wanted: Sequence[str]) -> None:
        for text in wanted:
            if text in self._found:
                self._found.move_to_end(text)
        while len(self._found) > max(HELD_TEXTS, len(wanted)):
            self._found.popitem(last=False)
