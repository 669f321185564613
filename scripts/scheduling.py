"""Which worker runs which tests, and in which order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import durations
import tiers
from turns import ROOT, turn
from xdist.scheduler import LoadScopeScheduling

_PARSES = re.compile(r"^from workspace import[^)]*\b(tree_of|nodes_of|imports)\b", re.M)
SOURCES = "the sources of the workspace"
"""The scope of the tests that parse them all, which one worker does once."""
_FORKS = re.compile(r"\b(heavy_imports|someone_with_imports|heavy_fork_server)\b")
HEAVY_FORKS = "forks with heavy imports"
"""The scope of the tests in files with one whose runs are forked from a server that has imported torch, which one worker
starts once."""


@cache
def reads_sources(file: str) -> bool:
    """Whether the tests in ``file``, from the root, look at the sources of the workspace."""
    path = ROOT / file
    return path.is_file() and _PARSES.search(path.read_text(encoding="utf-8")) is not None


@cache
def forks_with_heavy_imports(file: str) -> bool:
    """Whether a test in ``file``, from the root, asks for them."""
    path = ROOT / file
    return path.is_file() and _FORKS.search(path.read_text(encoding="utf-8")) is not None


def scope_of_file(test: str) -> str:
    """What a test (a node id) shares a worker with: its file, or all that look at the sources."""
    file = test.partition("::")[0]
    return SOURCES if reads_sources(file) else file


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out tests by file, those recorded as longest first: at the end no worker has a long one to itself."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of_file(nodeid)

    def schedule(self) -> None:
        """Deal out the first scopes, once all workers have collected."""
        begins = self.collection is None
        if begins:
            # What is in the queue already keeps its place when the tests come in.
            collected = next(iter(self.registered_collections.values()))
            scopes = recorded_first(self.config, collected, self._split_scope)
            self.workqueue.update((scope, {}) for scope in scopes)
        super().schedule()
        if (
            begins and self.collection is None
        ):  # the workers' collections differ, and nothing is run
            self.workqueue.clear()


class ByPackage(LongestFirst):
    """Deals out the tests of the core, the runtime and the whole system by file, those of other packages by package:
    they share what they made for a session. So do those of :data:`HEAVY_FORKS`."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.partition("::")[0]
        if forks_with_heavy_imports(file):
            return HEAVY_FORKS
        package, _, _ = file.partition("/tests/")
        return file if package in ("core", "runtime", "testing", file) else package


def recorded_first(
    config: Any, tests: Iterable[str], scope_of: Callable[[str], str] = scope_of_file
) -> list[str]:
    """:func:`longest_first` by the record of the tier that ``config`` (of pytest) runs."""
    kind = tiers.RECORDS.get(config.option.markexpr, durations.FILES)
    return longest_first(tests, durations.read().get(kind, {}), scope_of)


def longest_first(
    tests: Iterable[str], recorded: Mapping[str, float], scope_of: Callable[[str], str]
) -> list[str]:
    """The scopes of ``tests`` (node ids) by the seconds that are ``recorded`` of their files, those without any last.

    These begin with another one after each change of the sources: what a slow machine has no time for is not the same."""
    seconds: dict[str, float] = {}
    for file in dict.fromkeys(test.partition("::")[0] for test in tests):
        scope = scope_of(f"{file}::")
        seconds[scope] = seconds.get(scope, 0.0) + recorded.get(file, 0.0)
    known = [scope for scope in seconds if seconds[scope]]
    others = [scope for scope in seconds if not seconds[scope]]
    first = turn(len(others)) if others else 0
    return sorted(known, key=lambda scope: -seconds[scope]) + others[first:] + others[:first]
