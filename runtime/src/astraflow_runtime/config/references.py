"""What ``"module:attribute"`` refers to, read from the source: nothing of the plugin is executed."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

_PLAIN_BASES = ("object",)
_EMPTY = {("typing", "Protocol"), ("typing", "Generic"), ("abc", "ABC")}
"""Bases without methods of their own."""


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


def methods_of(reference: str, without: str = "") -> frozenset[str] | None:
    """Names that the class ``"module:attribute"`` and its bases define, according to their sources; ``None`` where these are
    not conclusive: a function, a base that is computed, a decorator. Classes of the module ``without`` add nothing."""
    module, _, name = reference.partition(":")
    return _methods(module, name, without, set())


def _methods(module: str, name: str, without: str, seen: set[str]) -> frozenset[str] | None:
    reference = f"{module}:{name}"
    if module == without or (module, name) in _EMPTY or reference in seen:
        return frozenset()
    seen.add(reference)
    try:
        file = source_of(module)
        tree = None if file is None else ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, ImportError):
        return None
    if file is None or tree is None:
        return None
    match _binding(tree, name):
        case ast.ClassDef() as found:
            later = any(_attributes(tree, name))  # set from outside of it
            return None if later else _of_class(found, module, without, seen)
        case ast.ImportFrom() as found:
            package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
            above = package[: len(package) - found.level + 1] if found.level else []
            origin = ".".join([*above, *filter(None, [found.module])])
            real = next(a.name for a in found.names if name == (a.asname or a.name))
            return _methods(origin, real, without, seen)
    return None if name not in _PLAIN_BASES else frozenset()


def _of_class(
    found: ast.ClassDef, module: str, without: str, seen: set[str]
) -> frozenset[str] | None:
    names = set(_bound(found)) | set(_attributes(found, "self"))
    if found.decorator_list or found.keywords or "__getattr__" in names:
        return None
    for base in found.bases:
        of = base.value if isinstance(base, ast.Subscript) else base
        more = _methods(module, of.id, without, seen) if isinstance(of, ast.Name) else None
        if more is None:
            return None
        names |= more
    return frozenset(names)


def _attributes(scope: ast.AST, name: str) -> Iterator[str]:
    """Attributes that ``name.X = …`` sets."""
    for node in ast.walk(scope):
        match node:
            case ast.Attribute(attr=attribute, ctx=ast.Store(), value=ast.Name(id=of)) if (
                of == name
            ):
                yield attribute


def _binding(tree: ast.Module, name: str) -> ast.AST | None:
    """The statement at the top of a module that binds a name, if it is the only one."""
    found = [
        node
        for node in tree.body
        if (isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)
        or (
            isinstance(node, ast.ImportFrom)
            and any(name == (alias.asname or alias.name) for alias in node.names)
        )
    ]
    return found[0] if len(found) == 1 else None


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
