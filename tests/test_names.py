"""A public class name means one thing in the repository, and documents use the names that the code has."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import dev
from workspace import ROOT, sources, tracked_files, tree_of

EXCEPTIONS: dict[str, str] = {}
"""Names that several packages may give to a class, with the reason."""


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict[str, list[str]](list)
    for file in tracked_files():
        if (
            file.suffix == ".py"
            and "src" in file.parts
            and not {"examples", "scaffold"} & {*file.parts}
        ):
            for node in tree_of(file).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    twice = {n: p for n, p in places.items() if len(p) > 1 and n not in EXCEPTIONS}
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in twice.items())
    assert len(places) > 500


def test_documents_name_modules_attributes_and_methods_that_exist() -> None:
    modules: dict[str, ast.Module] = {}
    methods = defaultdict[str, set[str]](set)
    for package in dev.packages():
        for file in sources(package.path):
            parts = file.relative_to(package.path / "src").with_suffix("").parts
            tree = tree_of(file)
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = tree
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    methods[node.name] |= _names(node, methods)
    wrong, found = [], 0
    for page in tracked_files():
        if page.suffix != ".md" or page.name == "CHANGELOG.md" or "changelog.d" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`(astraflow_\w+(?:\.\w+)+)", text):
            found += 1
            parts = name.split(".")
            known = [n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in modules]
            rest = parts[known[-1] :] if known else []
            held = _names(modules[".".join(parts[: known[-1]])], methods) if known else set()
            if not known or (rest and rest[0] not in held):
                wrong.append(f"{page.relative_to(ROOT)}: {name}")
        for owner, method in re.findall(r"`([A-Z]\w+)\.(\w+)\(", text):
            found += 1
            if owner in methods and method not in methods[owner]:
                wrong.append(f"{page.relative_to(ROOT)}: {owner}.{method}()")
    assert not wrong, "\n".join(wrong)
    assert found > 200


def _names(tree: ast.Module | ast.ClassDef, methods: dict[str, set[str]]) -> set[str]:
    """What a module or class defines or imports, with the methods of its bases."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        else:
            inside = list(ast.walk(node))
            found |= {each.id for each in inside if isinstance(each, ast.Name)}
            # Names that a module imports on access stand in a table.
            found |= {str(each.value) for each in inside if isinstance(each, ast.Constant)}
    bases = tree.bases if isinstance(tree, ast.ClassDef) else []
    return found.union(
        *(methods.get(base.id, set()) for base in bases if isinstance(base, ast.Name))
    )
