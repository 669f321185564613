"""Tags, calls of tools, and answers to them."""

from __future__ import annotations

import pytest

from astraflow_core.types import Action, FunctionCall
from astraflow_environments.actions import argument, first_tagged, said


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<a>x</a>", ("a", "x")),
        ("Well. <B> x\ny </B> <a>z</a>", ("b", "x\ny")),
        ("<a>cut off", ("a", "cut off")),
        ("<a>x</b> more", ("a", "x</b> more")),
        ("<c>x</c>", None),
        ("a", None),
    ],
)
def test_the_first_tag_of_these_names_is_read(text: str, found: tuple[str, str] | None) -> None:
    assert first_tagged(text, "a", "b") == found


def test_each_call_is_answered_and_one_is_made() -> None:
    calls = (FunctionCall("c1", "f", {"x": "1"}), FunctionCall("c2", "g", {}))
    assert [m["content"] for m in said(Action("", calls), "done")] == [
        "done",
        "Not done: one call in a turn.",
    ]
    assert [m["tool_call_id"] for m in said(Action("", calls), "done")] == ["c1", "c2"]
    assert (
        said(None, "hello")
        == said(Action("hi"), "hello")
        == ({"role": "user", "content": "hello"},)
    )
    assert argument(Action("", calls), {"f": "x", "g": "y"}) == ("f", "1")


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ((), "Call a tool: f, g"),
        ((FunctionCall("c", "fly", {}),), "no tool 'fly'; call f, g"),
        ((FunctionCall("c", "f", {}),), "f needs an argument 'x', a text"),
        ((FunctionCall("c", "f", {"x": 1}),), "f needs an argument 'x', a text"),
        ((FunctionCall("c", "f", "{"),), "f needs an argument 'x', a text"),
    ],
)
def test_the_model_gets_an_error_for_an_invalid_call(
    calls: tuple[FunctionCall, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        argument(Action("", calls), {"f": "x", "g": "y"})
