"""Which worker runs which tests: those of a package stay in one, for they share what they made for a session."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class ByPackage(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out the tests of the core, the runtime and the whole system by file, those of other packages by package."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.partition("::")[0]
        package, _, _ = file.partition("/tests/")
        return file if package in ("core", "runtime", "testing", file) else package
