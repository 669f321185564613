"""Code blocks of a page that are parts of files.

Before such a block stands ``<!-- from PATH -->`` or, for one definition of a Python module,
``<!-- from PATH: NAME -->``; the path counts from the root of the repository.
"""

from __future__ import annotations

import ast
import re

import dev

_BLOCK = re.compile(
    r"(?P<mark><!-- from (?P<path>\S+?)(?:: (?P<name>\w+))? -->)\n```(?P<language>\w+)\n.*?^```$",
    re.MULTILINE | re.DOTALL,
)


def with_includes(text: str) -> str:
    """The page with the blocks below its marks anew; :class:`dev.Failure` if a part is not there."""

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
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise dev.Failure(f"a page includes {name} of {path}, which defines no such name")
