"""The entry of a distribution in an index: read from a report and validated, since both are untrusted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from astraflow_runtime.cli.installation.check_report import digest_of, verdict_of
from astraflow_runtime.cli.installation.links import SAFE_LABEL, SAFE_URL, is_safe

FORMAT = 1
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
Word = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_./ -]{0,99}\Z")]
VersionText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.+!_-]{1,64}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Summary = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]{0,512}\Z"
    ),
]
Label = Annotated[str, msgspec.Meta(pattern=SAFE_LABEL)]
Url = Annotated[str, msgspec.Meta(pattern=SAFE_URL)]
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


class IndexedLink(msgspec.Struct, frozen=True):
    """A page of the authors. Raises ``ValueError`` for an address that a page must not link to."""

    label: Label
    url: Url

    def __post_init__(self) -> None:
        if not is_safe(self.url):
            raise ValueError(
                f"{self.url} is not an http or https address, which a page could link to"
            )


class IndexEntry(msgspec.Struct, frozen=True):
    """A checked version of a distribution; of the spellings of its name, the normalised one. ``core_api`` is the plugin API of the core with which it was checked, ``passed`` of
    ``checks`` checks passed, ``digest`` is that of the report and ``files`` that of the package; ``summary`` and ``links`` are
    those of its metadata."""

    name: Name
    version: VersionText
    verdict: Literal["passed", "failed", "incomplete"]
    passed: int
    checks: int
    core_api: Api
    digest: Digest
    files: Digest
    plugins: Annotated[list[IndexedPlugin], msgspec.Meta(min_length=1, max_length=100)]
    summary: Summary = ""
    links: Annotated[list[IndexedLink], msgspec.Meta(max_length=20)] = []

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
    def stem(self) -> str:
        """Name of its files in an index, without suffix."""
        return f"{self.name}-{self.version}"

    @property
    def order(self) -> tuple[str, Version]:
        """By name, then by version."""
        return self.name, Version(self.version)


class PluginIndex(msgspec.Struct, frozen=True):
    """``index.json``."""

    format: Literal[1]
    distributions: list[IndexEntry]


class _Check(msgspec.Struct):
    verdict: Literal["passed", "failed", "not checked"]


class NoReport(ValueError):
    """A file that is no report of a check; the text says why."""


def entry_of(content: bytes) -> IndexEntry:
    """Of a report as ``astraflow plugin check --json`` prints it. Raises :class:`NoReport`."""
    try:
        report = msgspec.json.decode(content)
        if not isinstance(report, dict) or report.get("format") != FORMAT:
            raise NoReport("it is not a report of `astraflow plugin check --json`")
        if report.get("digest") != digest_of(report):
            raise NoReport("it was changed after the check: its digest is not that of its contents")
        entry = msgspec.convert(_facts(report), IndexEntry)
        Version(entry.version)
    except msgspec.ValidationError as error:
        raise NoReport(readable(str(error))) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoReport(f"it is not valid JSON: {error}") from error
    except InvalidVersion as error:
        raise NoReport(f"its version is not one of Python's packages (PEP 440): {error}") from error
    return msgspec.structs.replace(entry, name=canonicalize_name(entry.name))


def readable(error: str) -> str:
    """A message of msgspec, such as "Expected `str`, got `int` - at `$.links[0].url`", as the author of a plugin reads it."""
    said, _, place = error.partition(" - at `$")
    place = place.strip("`.").replace("[...]", "")
    if place.partition("[")[0] in ("name", "version", "summary", "links"):
        place = f"distribution.{place}"
    where = f"its key {place}" if place else "its top level"
    last = place.rpartition(".")[2].partition("[")[0]
    expected = _EXPECTED.get(place) or _EXPECTED.get(last)
    if "matching regex" in said and expected:
        return f"{where} is not valid: expected {expected}"
    said = said.replace("Object missing required field", "it lacks the key")
    for word, plain in _TYPES.items():
        said = said.replace(word, plain)
    return f"{where} is not valid: {said[0].lower()}{said[1:]}"


_TYPES = {
    "`array` of length": "a list whose length is", "`array`": "a list", "`object`": "a table", "`str`": "a text",
    "`int`": "a whole number", "`null`": "nothing", "`bool`": "true or false", "`float`": "a number",
}  # fmt: skip
_EXPECTED = {
    "distribution.name": "letters, digits, '.', '_' and '-', at most 100",
    "distribution.version": "letters, digits and .+!_-, at most 64",
    "summary": "at most 512 visible characters on one line",
    "name": "lower-case letters, digits and _./- and spaces, at most 100",
    "kind": "a kind of component in lower case",
    "capabilities": "words of lower-case letters, digits and _./-",
    "commands": "words of lower-case letters, digits and _./-",
    "digest": "'sha256:' and 64 hexadecimal digits",
    "files": "'sha256:' and 64 hexadecimal digits",
    "label": "1 to 40 visible characters without < and >",
    "url": "an address of http:// or https:// in ASCII",
}
"""Key → what it must hold."""


def _facts(report: dict[str, Any]) -> dict[str, Any]:
    """The fields of an entry, not yet checked, but for the verdict, which is that of the checks."""
    told = report.get("distribution")
    named = told if isinstance(told, dict) else {}
    verdicts = _verdicts(report.get("checks"))
    verdict = verdict_of(verdicts)
    if report.get("verdict") != verdict:
        raise NoReport(
            f"its verdict {report.get('verdict')!r:.40} does not match its checks: {verdict!r}"
        )
    return {
        "name": named.get("name"),
        "version": named.get("version"),
        "passed": verdicts.count("passed"),
        "checks": len(verdicts),
        **{key: named[key] for key in ("summary", "links") if key in named},
        **{key: report.get(key) for key in ("verdict", "core_api", "digest", "files", "plugins")},
    }


def _verdicts(checks: Any) -> list[str]:
    try:
        found: list[str] = [check.verdict for check in msgspec.convert(checks, list[_Check])]
    except msgspec.ValidationError as error:
        raise NoReport(f"it has no list of checks: {error}") from error
    if not found:
        raise NoReport("it has no list of checks: it is empty")
    return found
