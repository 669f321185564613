"""A tool for `examples/tools.toml`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


def calculate(
    expression: Annotated[str, Field(description="such as 6 * (2 + 5)", max_length=200)],
) -> float:
    """Evaluate an expression of arithmetic: numbers, + - * / and parentheses."""
    return _value(ast.parse(expression, mode="eval").body)


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float()):
            return node.value  # type: ignore[return-value]
        case ast.BinOp():
            return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        case ast.UnaryOp():
            return OPERATORS[type(node.op)](_value(node.operand))
    raise ValueError(f"{ast.unparse(node)} is no arithmetic")
