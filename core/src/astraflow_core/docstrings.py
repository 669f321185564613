"""What a component says of itself, read from its source: nothing of the plugin is executed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from importlib.machinery import PathFinder
from pathlib import Path


def docstring_of(reference: str) -> str:
    """The docstring of ``"module:attribute"``, cleaned; empty if its source defines no such name."""
    module, _, attribute = reference.partition(":")
    file = _source_of(module)
    if file is None:
        return ""
    try:
        scope: ast.AST = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it is told
        return ""
    for name in attribute.split("."):
        inner = (
            node
            for node in ast.iter_child_nodes(scope)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        )
        found = next(inner, None)
        if found is None:
            return ""
        scope = found
    assert isinstance(scope, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return inspect.cleandoc(ast.get_docstring(scope, clean=False) or "")


def _source_of(module: str) -> Path | None:
    """The file of a module, found from package to package without importing any."""
    top, *below = module.split(".")
    spec, name = importlib.util.find_spec(top), top
    for part in below:
        if spec is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or []))
    file = None if spec is None else spec.origin
    return Path(file) if file is not None and file.endswith(".py") else None
