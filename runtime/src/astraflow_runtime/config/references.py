"""What ``"module:attribute"`` refers to, read from the source: nothing of the plugin is executed."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path


def unresolved(reference: str) -> str:
    """Why the import of ``"module:attribute"`` would fail, judged from its source; else nothing."""
    module, _, attribute = reference.partition(":")
    first = attribute.partition(".")[0]
    try:
        file = source_of(module)
        if file is None:
            return "" if _is_compiled(module) else f"there is no module {module!r}"
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        return f"module {module!r} cannot be read: {error}"
    names = set(_bound(tree))
    if names & {first, "*", "__getattr__"}:
        return ""
    return f"module {module!r} ({file}) defines no {first!r}"


def _bound(scope: ast.AST) -> Iterator[str]:
    """Names that a module binds, in branches too but not in nested scopes."""
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case (
                ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp()
            ):
                pass
            case _:
                yield from _bound(node)


def _is_compiled(module: str) -> bool:
    """Whether the module exists but has no readable source."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def source_of(module: str) -> Path | None:
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
