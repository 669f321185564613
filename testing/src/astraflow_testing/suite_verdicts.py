"""The faults that each conformance suite was seen to detect.

Of each kind there are mutants, components with one realistic mistake each, and ``mutants.json`` records which test of the
suite caught which. A record holds for the source of the suite that it was made with.
"""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError

PACKAGE = "astraflow_testing"
RECORD = "mutants.json"


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """``mutants``: their number; ``caught``: how many of them failed the suite; ``source``: digest of the suite as it is;
    ``recorded``: whether the numbers are of this source."""

    suite: str
    mutants: int
    caught: int
    source: str
    recorded: bool


def verdict_on(suite: str) -> SuiteVerdict:
    """The recorded verdict on the suite of a kind, such as ``"reward"``, or on ``"manifest"`` or ``"command"``."""
    entry = recorded().get(suite, {"suite": "", "mutants": []})
    source = source_digest(suite)
    caught = sum(1 for mutant in entry["mutants"] if mutant["caught_by"])
    return SuiteVerdict(suite, len(entry["mutants"]), caught, source, entry["suite"] == source)


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """Suite → its source at the time, and its mutants: name, what is ``wrong``, and the test by which it was caught."""
    text = resources.files(PACKAGE).joinpath(RECORD).read_text(encoding="utf-8")
    return dict(json.loads(text))


def source_digest(suite: str) -> str:
    """SHA-256 over the module of a suite and the modules of this distribution that it imports."""
    first = f"{PACKAGE}.conformance.{suite}"
    if _file(first) is None:
        raise UserError(f"there is no conformance suite {suite!r}")
    digest = hashlib.sha256()
    for module in sorted(_reached(first)):
        file = _file(module)
        assert file is not None  # _reached names modules that exist
        digest.update(f"{module}\n".encode() + file.read_bytes() + b"\n")
    return digest.hexdigest()


def _reached(first: str) -> set[str]:
    """Modules of this distribution that importing ``first`` imports, by the imports in their source."""
    found: set[str] = set()
    waiting = [first]
    while waiting:
        module = waiting.pop()
        file = _file(module)
        if file is None or module in found:
            continue
        found.add(module)
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                waiting += [str(node.module), *(f"{node.module}.{n.name}" for n in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [n.name for n in node.names if n.name.startswith(PACKAGE)]
    return found


def _file(module: str) -> Path | None:
    path = Path(__file__).parent.parent.joinpath(*module.split("."))
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)
