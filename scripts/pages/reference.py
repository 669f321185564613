"""docs/api/: a description of each public name, from its definition and docstring; a page for each distribution."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dev
import surface

from pages.decisions import slug
from pages.markdown import GENERATED, code, page, prose, table
from pages.public_modules import owner_of, public_modules
from pages.signatures import Function, members_of, names_of, origin, signature_of

_SHAPES = {"row": "`[R]`", "token": "`[N]`", "turn": "`[turns]`"}
_LONGEST_DEFAULT = 60


def reference() -> dict[str, str]:
    """Name of each page, without suffix → the page."""
    by_owner: dict[str, list[str]] = defaultdict(list)
    for module in sorted(public_modules()):
        by_owner[owner_of(module)].append(module)
    return {page_of(owner): _of_owner(owner, modules) for owner, modules in by_owner.items()}


def page_of(owner: str) -> str:
    """Name of the page of a distribution."""
    return owner.removeprefix("astraflow-")


def places() -> dict[str, str]:
    """Full name of a public name → the heading that has its description, from docs/."""
    found = {}
    again: dict[str, str] = {}
    for name, entry in surface.present().items():
        module, _, own = name.rpartition(".")
        if entry["signature"].startswith("is "):
            again[name] = entry["signature"].removeprefix("is ")
            continue
        unique = _described(module, own) and _headings(owner_of(module))[slug(own)] == 1
        found[name] = f"api/{page_of(owner_of(module))}.md#{slug(own if unique else module)}"
    return found | {name: found[where] for name, where in again.items() if where in found}


@cache
def _headings(owner: str) -> Counter[str]:
    """Anchor → how many headings of the page of a distribution have it."""
    return Counter(
        slug(heading)
        for module in public_modules()
        if owner_of(module) == owner
        for heading in (module, *(n for n in _definitions(module) if _described(module, n)))
    )


def _of_owner(owner: str, modules: list[str]) -> str:
    parts = []
    for module in modules:
        definitions = _definitions(module)
        if not definitions:
            continue
        tree = surface.tree_of_module(module)
        parts += [f"## {module}", _text(ast.get_docstring(tree))]
        values = [
            (code(name), code(signature_of(node).removeprefix("= ").removeprefix(": ")), _line(text_below(tree, name)))
            for name, node in definitions.items()
            if not isinstance(node, ast.ClassDef | Function)
        ]  # fmt: skip
        if values:
            parts.append(table(("value", "is", "meaning"), values))
        for name, node in definitions.items():
            if isinstance(node, ast.ClassDef):
                parts += [f"### {name}", *_of_class(node)]
            elif isinstance(node, Function):
                parts += [f"### {name}", _block(name, node), _text(ast.get_docstring(node))]
    text = page(
        f"# {owner}: the public names",
        GENERATED,
        f"From the docstrings of `{owner}`. [Public names](../api.md) has the stability of each name, and the plugin API that brought it.",
        *parts,
    )
    return _formatted(text, dev.ROOT / "docs" / "api" / f"{page_of(owner)}.md")


def _formatted(text: str, file: Path) -> str:
    """A page whose signatures are formatted as all code of the repository."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(file), "-"]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=dev.ROOT, timeout=60, check=False
    )
    if done.returncode:
        raise dev.Failure(f"ruff format of {file.name}: {done.stderr}")
    return done.stdout


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """What a module defines, or exports of a private one; the page of another public module describes its own."""
    found = {}
    for name, node in names_of(surface.tree_of_module(module)).items():
        again = isinstance(node, ast.ImportFrom) and origin(node, name)[0] in public_modules()
        if not again:
            found[name] = surface.definition_of(node, name)
    return found


def _described(module: str, name: str) -> bool:
    """Whether a name has a heading of its own."""
    return isinstance(_definitions(module).get(name), ast.ClassDef | Function)


def _of_class(node: ast.ClassDef) -> Iterator[str]:
    members = members_of(node)
    bases = ", ".join(map(ast.unparse, node.bases))
    kind = "A dataclass" if signature_of(node).startswith("@dataclass") else ""
    if bases:
        kind = f"{kind or 'A class'} with the base {code(bases)}"
    if "ConfigModel" in bases:
        kind += "; [configuration](../configuration.md) lists the keys of components and of a run"
    if kind:
        yield f"{kind}."
    yield _text(ast.get_docstring(node))
    rows = [
        (code(field), code(_type(m)), code(_default(m)), _line(meaning_of(m) or text_below(node, field)))
        for field, m in _fields(node)
        if field in members
    ]  # fmt: skip
    if rows:
        heads = ("field", "type", "default", "meaning")
        shown = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
        yield table(heads[:shown], (row[:shown] for row in rows))
    methods = [
        f"- {code(_signature(m))}" + _below(ast.get_docstring(m))
        for m in node.body
        if isinstance(m, Function) and m.name in members and not _is_setter(m)
    ]
    if methods:
        yield "\n".join(methods)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign | ast.Assign]]:
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            yield ast.unparse(member.target), member
        elif isinstance(member, ast.Assign):
            for target in member.targets:
                yield ast.unparse(target), member


def _type(member: ast.AnnAssign | ast.Assign) -> str:
    """The annotation, without what ``Annotated`` adds to it."""
    if isinstance(member, ast.Assign):
        return ""
    annotation = member.annotation
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        annotation = annotation.slice.elts[0]
    return ast.unparse(annotation)


def _default(member: ast.AnnAssign | ast.Assign) -> str:
    """The default, or how it is made; nothing where the field must be given."""
    value = member.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "Field"):
        given = {k.arg: ast.unparse(k.value) for k in value.keywords}
        made = given.get("default_factory")
        first = ast.unparse(value.args[0]) if value.args else ""
        return given.get("default") or (f"{made}()" if made else first.replace("...", ""))
    if value is None:
        return ""
    text = ast.unparse(value)
    return text if len(text) <= _LONGEST_DEFAULT and "\n" not in text else "…"


def meaning_of(member: ast.AnnAssign | ast.Assign) -> str:
    """What a field says of itself: ``description=`` of a ``Field`` or ``Meta``, or the text of a ``Column`` with its shape."""
    parts = [member.value]
    if isinstance(member, ast.AnnAssign):
        parts.append(member.annotation)
    calls = [n for p in parts if p is not None for n in ast.walk(p) if isinstance(n, ast.Call)]
    for call in calls:
        if ast.unparse(call.func) == "Column":
            per, text = (ast.literal_eval(a) for a in call.args[:2])
            return f"{_SHAPES[per]} {text}".strip()
        for keyword in call.keywords:
            if keyword.arg == "description":
                return str(ast.literal_eval(keyword.value))
    return ""


def text_below(owner: ast.Module | ast.ClassDef, name: str) -> str:
    """The string below the definition of a field or value, which documents it."""
    for defined, text in itertools.pairwise(owner.body):
        targets = defined.targets if isinstance(defined, ast.Assign) else []
        if isinstance(defined, ast.AnnAssign):
            targets = [defined.target]
        if (
            name in map(ast.unparse, targets)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            return text.value.value
    return ""


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """``async name(arguments) -> result``, without the first argument of a method; ``name: result`` of a property."""
    text = signature_of(node)
    marks, _, rest = text.partition("def(")
    if "property" in marks:
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else ''}"
    rest = re.sub(r"^(self|cls)(, )?", "", rest)
    return f"{marks.replace('@', '').replace('classmethod ', '').replace('staticmethod ', '')}{node.name}({rest}"


def _is_setter(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each).endswith(".setter") for each in node.decorator_list)


def _block(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks, _, rest = signature_of(node).partition("def(")
    decorators = "".join(f"{m}\n" for m in marks.split() if m.startswith("@"))
    start = "async def " if "async" in marks else "def "
    return f"```python\n{decorators}{start}{name}({rest}: ...\n```"


def _text(docstring: str | None) -> str:
    """A docstring whose literal blocks are those of Markdown."""
    return re.sub(r"::$", ":", prose(docstring), flags=re.MULTILINE)


def _line(text: str) -> str:
    return " ".join(prose(text).split())


def _below(docstring: str | None) -> str:
    """The docstring of a method, inside its item of a list."""
    text = _text(docstring)
    if not text:
        return ""
    first, *more = text.split("\n")
    return f": {first}" + "".join(f"\n  {line}" if line else "\n" for line in more)
