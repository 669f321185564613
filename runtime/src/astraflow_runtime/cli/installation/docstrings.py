"""Docstrings of components, read from the source, without executing any plugin code."""

from __future__ import annotations

import ast
import inspect

from astraflow_runtime.config.references import source_of


def docstring_of(reference: str) -> str:
    """The docstring of ``"module:attribute"``, cleaned; empty if its source defines no such name."""
    module, _, attribute = reference.partition(":")
    file = source_of(module)
    if file is None:
        return ""
    try:
        scope: ast.AST = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the error is raised when it is imported
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
