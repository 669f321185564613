"""A function that cannot be imported: the error states the cause, wherever it is reported."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from astraflow_contrib_agent.agents import FunctionAgent
from astraflow_core.errors import WorkflowError

TASK = {"id": "1", "data": {}, "base_url": "http://x/v1", "api_key": "ep-imports", "models": []}


@pytest.mark.parametrize(
    ("code", "target", "says"),
    [
        ("", "playr:play", r"ModuleNotFoundError: No module named 'playr' \(\[workflow\] folder is the folder of the module\)"),
        ("from os import path\ndef play(task): pass\nclass Other: pass\n", "player:nothere", "player has no function 'nothere'; it has: play, Other$"),
        ("", "player:nothere", "it has: none of its own$"),
        ("play = 3", "player:play", "'play' of player is int; expected a function"),
        ("\ndef play(task) pass\n", "player:play", r"SyntaxError: .* \(FOLDER/player.py:2\)$"),
        ("\nimport no_such_package.part\n", "player:play", r"No module named 'no_such_package' \(FOLDER/player.py:2\); PYTHON does not have it: install it there, or name .* by \[workflow\] python"),
        ("\n\nint('x')", "player:play", r"ValueError: invalid literal .* \(FOLDER/player.py:3\)$"),
        ("import os; os._exit(7)", "player:play", "its module ended the process with exit code 7"),
    ],
)  # fmt: skip
def test_the_cause_is_reported(tmp_path: Path, code: str, target: str, says: str) -> None:
    folder = tmp_path.resolve()
    (folder / "player.py").write_text(code)
    says = says.replace("FOLDER", re.escape(str(folder)))
    says = says.replace("PYTHON", re.escape(sys.executable))
    agent = FunctionAgent(target, folder, None)
    told = f"^agent {target} cannot be imported from {re.escape(str(folder))}: .*{says}"
    with pytest.raises(WorkflowError, match=told):
        asyncio.run(agent.play(TASK))


def test_a_fixed_cause_is_not_reported_again(tmp_path: Path) -> None:
    module = tmp_path / "player.py"
    agent = FunctionAgent("player:play", tmp_path, None)
    for code, says in (("int('x')", "ValueError"), ("import os; os._exit(7)", "exit code 7")):
        module.write_text(code)
        with pytest.raises(WorkflowError, match=says):
            asyncio.run(agent.play(TASK))
