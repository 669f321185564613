"""What a reference names, read from sources."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from astraflow_runtime.config.references import methods_of, unresolved


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("toy_parts:Part", ""),
        ("toy_parts:Path", ""),
        ("toy_parts:Nothing", "defines no 'Nothing'"),
        ("toy_parts.deeper:Part", "there is no module 'toy_parts.deeper'"),
        ("nowhere_at_all:Part", "there is no module 'nowhere_at_all'"),
        ("own_lazy:Anything", ""),
        ("own_branch:Chosen", ""),
        ("own_torn:Part", "module 'own_torn' cannot be read: invalid syntax"),
        ("math:floor", ""),
    ],
)
def test_a_target_that_is_not_there_is_found_without_importing_it(
    site: Any, target: str, problem: str
) -> None:
    site.toy()
    (site.folder / "own_lazy.py").write_text("def __getattr__(name): ...\n")
    (site.folder / "own_branch.py").write_text(
        "try:\n    import torch as Chosen\nexcept E:\n    pass\n"
    )
    (site.folder / "own_torn.py").write_text("class Part(:\n")
    found = unresolved(target)
    assert problem in found
    assert bool(found) == bool(problem)
    assert target.partition(":")[0] not in sys.modules or target == "math:floor"


TRACKERS = """
from abc import ABC
from dataclasses import dataclass
from typing import Protocol

from astraflow_core.protocols.tracker import Tracker
from own_base import Base as Other

class Plain:
    def started(self, run, config): ...
    metrics = ended = lambda *_: None

class Later(ABC):
    def __init__(self): self.ended = print
    if True:
        def started(self): ...

class Own(Later, Other): ...
class Promised(Tracker, Protocol):
    def ended(self): ...
class Made(make()): ...
@dataclass
class Decorated: ...
class Patched: ...
Patched.ended = print
def factory(config, context): ...
"""


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Plain", {"started", "metrics", "ended"}),
        ("Later", {"__init__", "started", "ended"}),
        ("Own", {"__init__", "started", "ended", "spans"}),
        ("Other", {"spans"}),
        ("Promised", {"ended"}),
        ("Made", None),
        ("Decorated", None),
        ("Patched", None),
        ("factory", None),
        ("Gone", None),
    ],
)
def test_what_a_class_defines_is_read_from_its_sources(
    site: Any, name: str, found: set[str] | None
) -> None:
    (site.folder / "own_base.py").write_text(
        "class Base(object):\n    async def spans(self): ...\n"
    )
    (site.folder / "own_trackers.py").write_text(TRACKERS)
    assert methods_of(f"own_trackers:{name}", "astraflow_core.protocols.tracker") == found
    assert "own_trackers" not in sys.modules and "own_base" not in sys.modules
