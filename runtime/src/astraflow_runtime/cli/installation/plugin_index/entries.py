"""What an index says of a distribution: taken from a report, and checked, for strangers write both."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from packaging.version import InvalidVersion, Version

from astraflow_runtime.cli.installation.check_report import digest_of

FORMAT = 1
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
Word = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_./ -]{0,99}\Z")]
VersionText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.+!_-]{1,64}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Api = tuple[
    Annotated[int, msgspec.Meta(ge=0, le=10**6)], Annotated[int, msgspec.Meta(ge=0, le=10**6)]
]


class IndexedComponent(msgspec.Struct, frozen=True):
    """A component, as its manifest has it."""

    kind: Word
    name: Word
    capabilities: Annotated[list[Word], msgspec.Meta(max_length=100)] = []


class IndexedPlugin(msgspec.Struct, frozen=True):
    """A plugin of a distribution; ``api`` is the plugin API that it was written for."""

    name: Word
    api: Api | None
    components: list[IndexedComponent] = []
    commands: list[Word] = []


class IndexEntry(msgspec.Struct, frozen=True):
    """A checked version of a distribution. ``core_api`` is the plugin API of the core with which it was checked, ``passed`` of
    ``checks`` checks passed, ``digest`` is that of the report and ``files`` that of the package."""

    name: Name
    version: VersionText
    verdict: Literal["passed", "failed", "incomplete"]
    passed: int
    checks: int
    core_api: Api
    digest: Digest
    files: Digest
    plugins: Annotated[list[IndexedPlugin], msgspec.Meta(min_length=1, max_length=100)]

    def loads(self, core: tuple[int, int]) -> bool:
        """Whether a core of that plugin API uses all of its plugins."""
        written = [plugin.api for plugin in self.plugins]
        return all(api is not None and api[0] == core[0] and api[1] <= core[1] for api in written)

    @property
    def components(self) -> list[str]:
        """Such as ``"reward brevity"``, commands too."""
        found = [f"{c.kind} {c.name}" for p in self.plugins for c in p.components]
        return found + [f"command {name}" for p in self.plugins for name in p.commands]

    @property
    def order(self) -> tuple[str, Version]:
        """By name, then by version."""
        return self.name.lower(), Version(self.version)


class PluginIndex(msgspec.Struct, frozen=True):
    """``index.json``."""

    format: Literal[1]
    distributions: list[IndexEntry]


class NoReport(ValueError):
    """A file that is no report of a check; the text says why."""


def entry_of(content: bytes) -> IndexEntry:
    """Of a report as ``astraflow plugin check --json`` prints it. Raises :class:`NoReport`."""
    try:
        report = msgspec.json.decode(content)
        if not isinstance(report, dict) or report.get("format") != FORMAT:
            raise NoReport("it is no report of `astraflow plugin check --json`")
        if report.get("digest") != digest_of(report):
            raise NoReport("it was changed after the check: its digest is not that of its contents")
        entry = msgspec.convert(_facts(report), IndexEntry)
        Version(entry.version)
    except (msgspec.MsgspecError, RecursionError, InvalidVersion) as error:
        raise NoReport(str(error)) from error
    return entry


def _facts(report: dict[str, Any]) -> dict[str, Any]:
    """The fields of an entry, not yet checked."""
    told, checks = report.get("distribution"), report.get("checks")
    named = told if isinstance(told, dict) else {}
    listed = checks if isinstance(checks, list) else []
    verdicts = [check.get("verdict") for check in listed if isinstance(check, dict)]
    same = ("verdict", "core_api", "digest", "files", "plugins")
    return {
        "name": named.get("name"),
        "version": named.get("version"),
        "passed": verdicts.count("passed"),
        "checks": len(verdicts),
        **{key: report.get(key) for key in same},
    }
