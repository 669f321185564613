"""Reward ``reasoning_gym``: the dataset's own scoring."""

from __future__ import annotations

import re

from astraflow_contrib_reasoning_gym.config import RewardConfig
from astraflow_contrib_reasoning_gym.datasets import Dataset, dataset, entry
from astraflow_core.errors import WorkflowError
from astraflow_core.types import ComponentContext, TrajectoryView

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?|\d+(?:\.\d+)?", re.ASCII)
_SOLVED = 0.99


class ReasoningGymReward:
    """``score_answer`` of the dataset that made the prompt. It gives some credit to a text that merely
    contains the answer, so ``binary`` counts only scores from 0.99 on."""

    def __init__(self, config: RewardConfig, context: ComponentContext) -> None:
        self._config = config

    def score(self, view: TrajectoryView) -> float:
        """A reward in [0, 1]; runs in a worker process, since a dataset may take its time."""
        source = view.data.get("source")
        if not isinstance(source, dict):
            raise WorkflowError(
                f"prompt {view.prompt.id!r}: reward 'reasoning_gym' needs prompts of the prompt source "
                "'reasoning_gym' (data['source'])"
            )
        made_by = Dataset(**source)
        item = entry(made_by, view.data["index"])
        text = view.text.strip()
        if self._config.extract == "last_number":
            numbers = _NUMBER.findall(text)
            text = numbers[-1] if numbers else ""
        score = float(dataset(made_by).score_answer(text, item))
        return float(score >= _SOLVED) if self._config.binary else score
