"""Imports of a plugin: of AstraFlow only what is public."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from astraflow_contrib_plugin.checking.result import CheckResult, judged
from astraflow_contrib_plugin.public_modules import is_ours, is_public

_PLUGINS = ("astraflow_plugin_", "astraflow_contrib_")


def check_layering(packages: list[Path], tests: Path | None) -> CheckResult:
    """Every import of a module or name of AstraFlow that is not public, with file and line."""
    own = {package.name for package in packages}
    problems, count = [], 0
    for root in [*packages, *filter(None, [tests])]:
        for file in sorted(root.rglob("*.py")):
            count += 1
            place = file.relative_to(root.parent)
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError) as error:
                problems.append(f"{place}: {error}")
                continue
            problems += [f"{place}:{line}: {what}" for line, what in _private(tree, own)]
    return judged("layering", f"{count} files import public modules only", problems)


def _private(tree: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    imported: list[tuple[str, list[str]]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [(name.name, []) for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            imported = [(node.module, [name.name for name in node.names])]
        else:
            continue
        for module, names in imported:
            top = module.partition(".")[0]
            if top not in own and (is_ours(top) or top.startswith(_PLUGINS)):
                for what in _not_public(module, names):
                    yield node.lineno, what


def _not_public(module: str, names: list[str]) -> Iterable[str]:
    top = module.partition(".")[0]
    if top.startswith(_PLUGINS):
        yield f"imports {module} of another plugin; a plugin uses others by what a config names"
        return
    inside = [f"{module}.{name}" for name in names if _exists(f"{module}.{name}")]
    plain = [name for name in names if f"{module}.{name}" not in inside]
    reached = inside + ([module] if plain or not names else [])
    for each in reached:
        if not is_public(each):
            yield f"imports {each}, which is private; docs/modules.md lists the public modules"
    for name in plain:
        if name.startswith("_") and is_public(module):
            yield f"imports the private name {name} of {module}"


def _exists(module: str) -> bool:
    """Whether there is a module of that name; nothing is imported."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        path = Path(place, *rest)
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            return True
    return False
