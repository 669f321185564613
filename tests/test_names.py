"""A public class name means one thing in the repository."""

from __future__ import annotations

import ast
from collections import defaultdict

from workspace import ROOT, tracked_files, tree_of

EXCEPTIONS: dict[str, str] = {}
"""Names that several packages may give to a class, with the reason."""


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict[str, list[str]](list)
    for file in tracked_files():
        if file.suffix == ".py" and "src" in file.parts and "examples" not in file.parts:
            for node in tree_of(file).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    twice = {n: p for n, p in places.items() if len(p) > 1 and n not in EXCEPTIONS}
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in twice.items())
    assert len(places) > 500
