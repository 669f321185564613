"""The token of a run is in no repr, and so in no log, error or traceback that shows the object around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import ROOT, nodes_of

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_engine_host.sharing.messages import Attach, Attachment

SECRET = ("token", "secret", "password", "api_key")


def fields() -> Iterator[tuple[Path, str, str, ast.AnnAssign]]:
    """Every annotated field of a class that is named like a secret."""
    for place in ("core", "libs", "runtime", "testing", "plugins", "contrib"):
        for file in sorted((ROOT / place).rglob("src/**/*.py")):
            for node in nodes_of(file):
                if not isinstance(node, ast.ClassDef) or "__repr__" in _methods(node):
                    continue  # a struct of msgspec has no field(repr=False); its own repr is tested below
                for line in node.body:
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        of_text = "str" in ast.unparse(line.annotation).lower()
                        if of_text and line.target.id in SECRET:
                            yield file.relative_to(ROOT), node.name, line.target.id, line


def _methods(node: ast.ClassDef) -> set[str]:
    return {line.name for line in node.body if isinstance(line, ast.FunctionDef)}


@pytest.mark.slow
def test_fields_that_hold_a_secret_have_no_repr() -> None:
    found = list(fields())
    assert {"ComponentContext", "HostSettings"} <= {owner for _, owner, _, _ in found}
    shown = [
        f"{file}: {owner}.{name}"
        for file, owner, name, line in found
        if line.value is None or "repr=False" not in ast.unparse(line.value)
    ]
    assert not shown, f"declare them with field(repr=False), or as pydantic's SecretStr: {shown}"


def test_messages_to_a_shared_engine_do_not_show_their_token() -> None:
    assert "t0ken" not in repr([Attachment("ipc:///here", "t0ken"), Attach("t0ken")])


def test_what_starts_a_process_does_not_show_its_environment() -> None:
    spec = ProcessSpec("raas-1", "raas", ("astraflow",), {"ASTRAFLOW_TOKEN": "t0ken"}, Path("log"))
    assert "t0ken" not in repr(spec)
