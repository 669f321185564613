"""Public names of a module and how they are used, read from its syntax tree; nothing is imported."""

from __future__ import annotations

import ast

Function = ast.FunctionDef | ast.AsyncFunctionDef
_CALLED = ("__init__", "__call__")
_DECORATORS = (
    "dataclass",
    "property",
    "staticmethod",
    "classmethod",
    "contextmanager",
    "cached_property",
)
"""Those that change how a name is used."""
_LONGEST_VALUE = 60


def names_of(tree: ast.Module) -> dict[str, ast.stmt]:
    """Public names of a module: those of ``__all__``, else what it defines or exports again (``import x as x``)."""
    found: dict[str, ast.stmt] = {}
    again: dict[str, ast.stmt] = {}
    listed: list[str] | None = None
    body = [s for n in tree.body for s in (n.body if isinstance(n, ast.If) else [n])]
    for node in body:
        if isinstance(node, ast.ClassDef | Function):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if targets == ["__all__"]:
                listed = ast.literal_eval(node.value)
            found |= dict.fromkeys(targets, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.ImportFrom):
            again |= {alias.asname or alias.name: node for alias in node.names}
            found |= {a.name: node for a in node.names if a.asname == a.name}
    if listed is not None:
        both = again | found
        return {name: both[name] for name in listed if name in both}
    return {name: node for name, node in found.items() if not name.startswith("_")}


def origin(node: ast.ImportFrom, name: str) -> tuple[str, str]:
    """Module and name that ``from module import name as name`` exports again."""
    (alias,) = [a for a in node.names if (a.asname or a.name) == name]
    return node.module or "", alias.name


def signature_of(node: ast.stmt) -> str:
    """One line: ``def`` with parameters, ``class`` with bases, or the value of a short constant."""
    if isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in (*node.bases, *node.keywords)]
        return f"{_decorated(node)}class({', '.join(bases)})"
    if isinstance(node, Function):
        word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{_decorated(node)}{word}({ast.unparse(node.args)}){returned}"
    if isinstance(node, ast.AnnAssign):
        given = "" if node.value is None else " = " + _short(node.value)
        return f": {ast.unparse(node.annotation)}{given}"
    if isinstance(node, ast.Assign):
        return "= " + _short(node.value)
    raise TypeError(f"no definition: {ast.dump(node)[:80]}")


def members_of(node: ast.stmt) -> dict[str, str]:
    """Public methods, fields and values of a class; neither tests of a conformance suite nor the keys of a config, which
    docs/configuration.md lists."""
    found: dict[str, str] = {}
    if not isinstance(node, ast.ClassDef) or "ConfigModel" in map(ast.unparse, node.bases):
        return found
    for member in node.body:
        if isinstance(member, Function):
            names = [member.name]
        elif isinstance(member, ast.AnnAssign):
            names = [ast.unparse(member.target)]
        elif isinstance(member, ast.Assign):
            names = [ast.unparse(target) for target in member.targets]
        else:
            continue
        for name in names:
            if name in _CALLED or not name.startswith(("_", "test_")):
                found[name] = signature_of(member)
    return found


def is_deprecated(node: ast.stmt) -> bool:
    """Whether a function, or the making of an object, warns with ``DeprecationWarning``."""
    if isinstance(node, ast.ClassDef):
        made = [
            m
            for m in node.body
            if isinstance(m, Function) and m.name in ("__init__", "__post_init__")
        ]
        return any(is_deprecated(method) for method in made)
    inside = ast.walk(node) if isinstance(node, Function) else ()
    return any(isinstance(each, ast.Name) and each.id == "DeprecationWarning" for each in inside)


def breaks_call(old: str, new: str) -> bool:
    """Whether a call, or a subclass check, that was right by the signature ``old`` may be wrong by ``new``."""
    if old.partition("def(")[0] != new.partition("def(")[0] or "def(" not in old:
        was, has_bases = _bases(old), _bases(new)
        return was is None or has_bases is None or not was <= has_bases
    before, after = _arguments(old), _arguments(new)
    had, has = [*before.posonlyargs, *before.args], [*after.posonlyargs, *after.args]
    if len(has) < len(had) and after.vararg is None:
        return True
    if any(mine.arg != theirs.arg for mine, theirs in zip(had, has, strict=False)):
        return True
    if len(has) - len(after.defaults) > len(had) - len(before.defaults):
        return True  # more positional ones are demanded
    known = {a.arg for a in (*after.kwonlyargs, *has)}
    if any(a.arg not in known for a in before.kwonlyargs) and after.kwarg is None:
        return True
    if (before.vararg and not after.vararg) or (before.kwarg and not after.kwarg):
        return True
    demanded = {
        a.arg for a, d in zip(after.kwonlyargs, after.kw_defaults, strict=True) if d is None
    }
    gave = {a.arg for a, d in zip(before.kwonlyargs, before.kw_defaults, strict=True) if d is None}
    return bool(demanded - gave)


def _bases(signature: str) -> set[str] | None:
    """Base classes of the signature of a class."""
    _, found, rest = signature.partition("class(")
    return set(rest.removesuffix(")").split(", ")) - {""} if found else None


def _arguments(signature: str) -> ast.arguments:
    text = signature.partition("def(")[2]
    (function,) = ast.parse(f"def f({text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


def _decorated(node: ast.ClassDef | Function) -> str:
    names = [ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list]
    return "".join(f"@{name} " for name in names if name in _DECORATORS)


def _short(value: ast.expr) -> str:
    text = ast.unparse(value)
    return text if len(text) <= _LONGEST_VALUE else "…"
