"""Code blocks of a page that are parts of files.

Before such a block stands ``<!-- from PATH -->`` or, for one definition of a Python module,
``<!-- from PATH: NAME -->``; the path counts from the root of the repository. Above a definition stand the imports
of its module that it uses, and one of what it uses of the module itself, so that the block can be pasted.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import dev

_BLOCK = re.compile(
    r"(?P<mark><!-- from (?P<path>\S+?)(?:: (?P<name>\w+))? -->)\n```(?P<language>\w+)\n.*?^```$",
    re.MULTILINE | re.DOTALL,
)


def with_includes(text: str) -> str:
    """The page with the blocks below its marks again; :class:`dev.Failure` if a part is not there."""

    def renew(found: re.Match[str]) -> str:
        part = _part(found["path"], found["name"])
        return f"{found['mark']}\n```{found['language']}\n{part}\n```"

    return _BLOCK.sub(renew, text)


def _part(path: str, name: str | None) -> str:
    file = dev.ROOT / path
    if not file.is_file():
        raise dev.Failure(f"a page includes {path}, which does not exist")
    text = file.read_text(encoding="utf-8")
    if name is None:
        return text.strip("\n")
    module = ast.parse(text)
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            lines = text.splitlines()[first - 1 : node.end_lineno]
            beside = _names_beside(module, node)
            above = [f"from {_module(file)} import {', '.join(beside)}"] if beside else []
            imports = _imports(module, node)
            between = [] if imports or not above else ["", ""]
            return "\n".join([*imports[:-2], *above, *imports[-2:], *between, *lines])
    raise dev.Failure(f"a page includes {name} of {path}, which defines no such name")


def _names_beside(module: ast.Module, definition: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """What a definition uses of its own module."""
    made = {n.name for n in module.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in module.body:
        if isinstance(node, ast.Assign):
            made |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    return sorted(used & made - {definition.name})


def _module(file: Path) -> str:
    """The name under which a module is imported."""
    parts = file.with_suffix("").parts
    return ".".join(parts[parts.index("src") + 1 :]) if "src" in parts else parts[-1]


def _imports(module: ast.Module, definition: ast.AST) -> list[str]:
    """The imports of a module that bind names of a definition, in their groups, and two empty lines."""
    used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    lines: list[str] = []
    end, apart = 0, False
    for statement in module.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        apart |= statement.lineno > end + 1
        end = statement.end_lineno or statement.lineno
        statement.names = [
            each for each in statement.names if (each.asname or each.name).partition(".")[0] in used
        ]
        if statement.names:
            lines += [""] if lines and apart else []
            lines.append(ast.unparse(statement))
            apart = False
    return [*lines, "", ""] if lines else []
