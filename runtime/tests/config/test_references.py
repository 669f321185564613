"""What a reference names, read from sources."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from astraflow_runtime.config.references import unresolved


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
