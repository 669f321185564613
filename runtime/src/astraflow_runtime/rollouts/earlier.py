"""The stored groups of a prompt, from which engines take drafts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.rollouts.building import LINE_TEXT
from astraflow_runtime.rollouts.records import GroupLine, GroupRecord
from astraflow_runtime.rollouts.segments import IndexTail, Segment, read, segments
from astraflow_wire.http.drafts import TOKEN_BYTES, PastSequence
from astraflow_wire.limits import MAX_DRAFT_BYTES, MAX_DRAFT_SEQUENCES, cut

log = logging.getLogger(__name__)
GROUPS = 4
"""The most groups of a prompt whose place is remembered, the newest."""
WAITING = 16
"""The most calls that wait for the disk; further ones find nothing."""


class EarlierGroups:
    """Reads the groups that ``writer`` stored in ``folder``, also in earlier processes and while it writes. Remembers the
    places of some groups of each prompt, a few hundred bytes each, and no more prompts than the store has. Thread-safe."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._folder, self._writer = folder, writer
        self._tails: dict[Segment, IndexTail] = {}
        self._places: dict[str, list[tuple[Segment, GroupLine]]] = {}
        self._lock = threading.Lock()
        self._calls = threading.BoundedSemaphore(WAITING)

    def find(self, prompt_id: str, most_bytes: int) -> list[PastSequence]:
        """Sequences of a prompt, of the oldest group first: as many of the newest groups as fit into ``most_bytes``, of which the
        last is cut. What cannot be read is left out. Reads from disk."""
        if not self._calls.acquire(blocking=False):
            return []
        try:
            with self._lock:
                self._refresh()
                places = list(self._places.get(cut(prompt_id, LINE_TEXT), ()))
            return self._newest(prompt_id, places, min(most_bytes, MAX_DRAFT_BYTES))
        finally:
            self._calls.release()

    def _refresh(self) -> None:
        there = segments(self._folder, self._writer)
        if gone := self._tails.keys() - set(there):
            self._tails = {s: tail for s, tail in self._tails.items() if s not in gone}
            kept = {
                prompt: [place for place in places if place[0] not in gone]
                for prompt, places in self._places.items()
            }
            self._places = {prompt: places for prompt, places in kept.items() if places}
        for segment in there:
            tail = self._tails.setdefault(segment, IndexTail(self._folder, segment))
            try:
                for line in tail.new_lines():
                    if isinstance(line, GroupLine):
                        places = self._places.setdefault(line.prompt_id, [])
                        # Without the lines of its trajectories, which are most of it.
                        places.append((segment, _bare(line)))
                        del places[:-GROUPS]
            except UserError as error:  # the reader of the store says it to people
                log.info("no drafts from the rest of %s: %s", segment.index(self._folder), error)

    def _newest(
        self, prompt_id: str, places: list[tuple[Segment, GroupLine]], most_bytes: int
    ) -> list[PastSequence]:
        left, found, count = most_bytes // TOKEN_BYTES, [], 0
        for segment, line in reversed(places):
            kept = []
            for each in self._group(prompt_id, segment, line):
                if left <= 0 or count == MAX_DRAFT_SEQUENCES:
                    break
                if not each.sampled[:left].any():
                    continue  # the prompt alone is none
                kept.append(PastSequence(each.policy, each.tokens[:left], each.sampled[:left]))
                left -= len(kept[-1].tokens)
                count += 1
            found.append(kept)
        return [each for kept in reversed(found) for each in kept]

    def _group(self, prompt_id: str, segment: Segment, line: GroupLine) -> Iterator[PastSequence]:
        try:
            record = read(self._folder, segment, line)
        except UserError as error:
            log.info("no drafts from group %s: %s", line.group, error)
            return
        if not isinstance(record, GroupRecord) or record.prompt_id != prompt_id:
            return  # the index has only the beginning of a long id
        for trajectory in record.trajectories:
            for stored in trajectory.sequences:
                tokens, sampled = stored.tokens, stored.versions >= 0
                if len(tokens) == len(sampled) and sampled.any():  # a redaction may have changed it
                    yield PastSequence(stored.policy, tokens, sampled)


def _bare(line: GroupLine) -> GroupLine:
    return GroupLine(
        line.number,
        line.group,
        line.time_s,
        line.raas,
        line.prompt_id,
        line.accepted,
        "",
        [],
        offset=line.offset,
        size=line.size,
    )
