"""The journal of a run, read once and then followed: counts that stay up to date, and where to look for a prompt or a group.

The log is divided into blocks. Of each the index keeps the ranges of the numbers that its entries name (tasks, rows and batches are
numbered in their order), and hashes of its prompts. A block that may name what is asked for is read; the others are not. This
takes some hundred bytes for a block, and four for each prompt.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    AttemptFailed,
    BatchRequested,
    Entry,
    Evicted,
    Leased,
    LeasesRevoked,
    Overdue,
    PromptsConsumed,
    Pushed,
    RaasGone,
    RaasLeft,
    RaasRegistration,
    Resumed,
    StopRequested,
)
from astraflow_runtime.dataflow.journal_reader import JournalListener, JournalReader

BLOCK_BYTES = 256 << 10
MOST_PROMPTS = 8 << 20
"""Hashes of prompts that are kept; blocks after that are read for every prompt."""
_ENDS_LEASES = RaasGone | LeasesRevoked | RaasLeft | RaasRegistration | StopRequested | Resumed
_LOOK_EVERY = 64
"""Entries between two looks at the clock."""
_HEAD = 64
"""Bytes at the begin of the newest block by which a log that was written anew is recognised."""
Key = tuple[str, int]
"""Something with a number: kind and number."""


def task_key(name: str) -> Key:
    """Of a task or a batch such as ``train-12``: the names of a kind differ in their number."""
    kind, _, digits = name.rpartition("-")
    return (kind, int(digits)) if digits.isdecimal() and len(digits) < 19 else (name, 0)


def row_key(policy: str, arrival: int) -> Key:
    """Of a row of a policy's buffer."""
    return f"row/{policy}", arrival


@dataclass(slots=True)
class JournalBlock:
    """Entries from byte ``begin`` to before ``end``. ``newest``: what was announced last before it, by policy. ``always``: it has
    entries that matter to every task."""

    begin: int
    end: int
    newest: tuple[tuple[float, Announced], ...]
    always: bool = False
    any_prompt: bool = False
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    prompts: array[int] = field(default_factory=lambda: array("I"))

    def may_name(self, keys: Iterable[Key], prompt: int | None) -> bool:
        """Whether it may have an entry about any of ``keys``, or about the prompt of this hash."""
        if self.always or (prompt is not None and (self.any_prompt or prompt in self.prompts)):
            return True
        ranges = self.ranges
        return any(
            kind in ranges and ranges[kind][0] <= number <= ranges[kind][1] for kind, number in keys
        )

    def note(self, kind: str, number: int) -> None:
        """Its entries name this."""
        low, high = self.ranges.get(kind, (number, number))
        self.ranges[kind] = min(low, number), max(high, number)


def prompt_hash(prompt: str) -> int:
    """32 bits of it."""
    return xxhash.xxh32_intdigest(prompt.encode())


class JournalIndex:
    """Of the run in ``directory``. ``listener()`` creates the listener that receives all entries, each once, as they arrive;
    it is recreated where a log was rewritten. Any thread may call it; :class:`~astraflow_core.errors.UserError` if there is no journal."""

    def __init__(self, directory: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self._directory, self._block_bytes = directory, block_bytes
        self.lock = threading.Lock()
        """Held by whoever calls :meth:`follow` and then looks at what listeners have."""
        self._forget()

    def _forget(self) -> None:
        self.share = 1.0
        """How much of the log :meth:`follow` has read."""
        self.blocks: list[JournalBlock] = []
        self._newest: dict[str, tuple[float, Announced]] = {}
        self._prompts = 0
        self._position, self._head = 0, b""

    def follow(self, *listeners: JournalListener, for_s: float = math.inf) -> bool:
        """Pass new entries to ``listeners``, for ``for_s`` seconds at most: the next call reads on, and
        :attr:`share` says how far it is. False if the log was replaced: then they must be recreated, and this
        called again."""
        until = time.monotonic() + for_s
        reader = JournalReader.of_run(self._directory)
        if not self._goes_on(reader.log):
            self._forget()
            return False
        begin, size = self._position, reader.log.stat().st_size
        self.share = 1.0
        for number, (at_s, entry, end) in enumerate(reader.records(begin), 1):
            self._note(self._block(begin), at_s, entry, end)
            for listener in listeners:
                listener.on_entry(at_s, entry)
            self._position = begin = end
            if number % _LOOK_EVERY == 0 and time.monotonic() >= until:
                self.share = min(1.0, end / max(1, size))
                break
        if self.blocks:
            self._head = _bytes_at(reader.log, self.blocks[-1].begin)
        return True

    def _goes_on(self, log: Path) -> bool:
        if log.stat().st_size < self._position:
            return False
        return not self.blocks or _bytes_at(log, self.blocks[-1].begin)[: len(self._head)] == self._head  # fmt: skip

    def _block(self, begin: int) -> JournalBlock:
        if not self.blocks or begin - self.blocks[-1].begin >= self._block_bytes:
            self.blocks.append(JournalBlock(begin, begin, tuple(self._newest.values())))
        return self.blocks[-1]

    def _note(self, block: JournalBlock, at_s: float, entry: Entry, end: int) -> None:
        block.end = end
        if isinstance(entry, Announced):
            self._newest[entry.message.policy] = at_s, entry
        elif isinstance(entry, _ENDS_LEASES):
            block.always = True
        else:
            prompts = list(_prompts_of(entry))
            block.any_prompt |= bool(prompts) and self._prompts >= MOST_PROMPTS
            if not block.any_prompt:
                block.prompts.extend(map(prompt_hash, prompts))
                self._prompts += len(prompts)
            for kind, number in _keys_of(entry):
                block.note(kind, number)

    def feed(
        self,
        listener: JournalListener,
        keys: Iterable[Key],
        prompt: str = "",
        until: float = math.inf,
    ) -> None:
        """Pass to a listener all entries that may be about ``keys`` or a prompt, and others, in their order. :class:`TimeoutError`
        if it is later than ``until`` (``time.monotonic``) before that is done."""
        wanted, hashed = set(keys), prompt_hash(prompt) if prompt else None
        reader, position = JournalReader.of_run(self._directory), -1
        for block in self.blocks:
            if not block.may_name(wanted, hashed):
                continue
            if block.begin != position:
                for at_s, entry in block.newest:
                    listener.on_entry(at_s, entry)
            position = block.end
            for number, record in enumerate(reader.records(block.begin)):
                if record.end > position:
                    break
                if number % _LOOK_EVERY == 0 and time.monotonic() >= until:
                    raise TimeoutError(f"at byte {record.end} of {reader.log}")
                listener.on_entry(record.at_s, record.entry)


def _bytes_at(log: Path, place: int) -> bytes:
    with log.open("rb") as file:
        file.seek(place)
        return file.read(_HEAD)


def _prompts_of(entry: Entry) -> Iterator[str]:
    if isinstance(entry, PromptsConsumed):
        if entry.task:
            yield entry.prompt
        for turned in entry.turned:
            yield from turned.prompts
    elif isinstance(entry, Pushed):
        yield entry.header.prompt_id


def _keys_of(entry: Entry) -> Iterator[Key]:
    match entry:
        case PromptsConsumed(task=task) if task:
            yield task_key(task)
        case Leased(task=task) | Overdue(task=task):
            yield task_key(task)
        case AttemptFailed(message=message):
            yield task_key(message.task)
        case Pushed(header=header, refill=refill, judged=judged):
            yield task_key(header.task)
            if refill:
                yield task_key(refill)
            for each in judged:
                if each.indexes:
                    yield row_key(each.policy, each.first)
                    yield row_key(each.policy, each.first + len(each.indexes) - 1)
        case BatchRequested(message=message, batch=batch):
            if batch:
                yield task_key(batch)
            yield from _ends(message.policy, entry.arrivals + entry.dropped)
            yield from _ends(entry.source, entry.borrowed)
        case Acknowledged(message=message):
            yield task_key(message.batch)
        case Evicted(policy=policy, arrivals=arrivals):
            yield from _ends(policy, arrivals)
        case _:
            return


def _ends(policy: str, arrivals: list[int]) -> Iterator[Key]:
    if arrivals:
        yield row_key(policy, min(arrivals))
        yield row_key(policy, max(arrivals))
