"""The stored groups of a prompt, from which engines take drafts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
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

    def find(self, prompt_id: str, most_bytes: Mapping[str, int]) -> list[PastSequence]:
        """Sequences of a prompt, of the oldest group first: of each policy as many of the newest groups as fit into its bytes, of
        which the last is cut. What cannot be read is left out. Reads from disk."""
        if not self._calls.acquire(blocking=False):
            return []
        try:
            with self._lock:
                self._refresh()
                places = list(self._places.get(cut(prompt_id, LINE_TEXT), ()))
            return self._newest(prompt_id, places, most_bytes)
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
            if not segment.index(self._folder).is_file():
                continue  # nothing waits for a FIFO
            tail = self._tails.setdefault(segment, IndexTail(self._folder, segment))
            try:
                for line in tail.new_lines():
                    if isinstance(line, GroupLine):
                        places = self._places.setdefault(line.prompt_id, [])
                        # Without the lines of its trajectories, which are most of it.
                        places.append((segment, _bare(line)))
                        del places[:-GROUPS]
            except UserError as error:  # the reader of the store says it to people
                log.debug("no drafts from the rest of %s: %s", segment.index(self._folder), error)

    def _newest(
        self,
        prompt_id: str,
        places: list[tuple[Segment, GroupLine]],
        most_bytes: Mapping[str, int],
    ) -> list[PastSequence]:
        budgets = {policy: most // TOKEN_BYTES for policy, most in most_bytes.items()}
        whole, count = MAX_DRAFT_BYTES // TOKEN_BYTES, 0
        found: list[list[PastSequence]] = []
        for segment, line in reversed(places):
            if not whole or count == MAX_DRAFT_SEQUENCES or not any(budgets.values()):
                break
            kept = []
            for each in self._group(prompt_id, segment, line):
                left = min(whole, budgets.get(each.policy, 0))
                if count == MAX_DRAFT_SEQUENCES or not each.sampled[:left].any():
                    continue  # the prompt alone is none
                kept.append(PastSequence(each.policy, each.tokens[:left], each.sampled[:left]))
                whole -= len(kept[-1].tokens)
                budgets[each.policy] -= len(kept[-1].tokens)
                count += 1
            found.append(kept)
        return [each for kept in reversed(found) for each in kept]

    def _group(self, prompt_id: str, segment: Segment, line: GroupLine) -> Iterator[PastSequence]:
        if not segment.data(self._folder).is_file():
            return
        try:
            record = read(self._folder, segment, line)
            if not isinstance(record, GroupRecord) or record.prompt_id != prompt_id:
                return  # the index has only the beginning of a long id
            for trajectory in record.trajectories:
                for stored in trajectory.sequences:
                    tokens, sampled = stored.tokens, stored.versions >= 0
                    if len(tokens) == len(sampled) and sampled.any():
                        yield PastSequence(stored.policy, tokens, sampled)
        except (UserError, ValueError) as error:  # ValueError: half a token
            log.debug("no drafts from group %s: %s", line.group, error)


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
