"""Which worker runs which tests, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

import durations
from xdist.scheduler import LoadFileScheduling, LoadScopeScheduling


class ByPackage(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out the tests of the core, the runtime and the whole system by file, those of other packages by package:
    they share what they made for a session."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.partition("::")[0]
        package, _, _ = file.partition("/tests/")
        return file if package in ("core", "runtime", "testing", file) else package


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """Deals out tests by file, those recorded as longest first: at the end no worker has a long one to itself."""

    def schedule(self) -> None:
        """Deal out the first files, once all workers have collected."""
        begins = self.collection is None
        if begins:
            # What is in the queue already keeps its place when the tests come in.
            collected = next(iter(self.registered_collections.values()))
            self.workqueue.update((file, {}) for file in longest_first(collected))
        super().schedule()
        if (
            begins and self.collection is None
        ):  # the workers' collections differ, and nothing is run
            self.workqueue.clear()


def longest_first(tests: Iterable[str]) -> list[str]:
    """The files of ``tests`` (node ids), those that are not recorded last and in their order."""
    recorded = durations.read()[durations.FILES]
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return sorted(files, key=lambda file: -recorded.get(file, 0.0))
