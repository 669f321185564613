"""What a reward compares with."""

from __future__ import annotations

from typing import Any

from astraflow_core.errors import WorkflowError
from astraflow_core.types import TrajectoryView


def expected_answer(view: TrajectoryView, reward: str) -> Any:
    """``data["answer"]`` of the prompt; :class:`WorkflowError` names the prompt that has none."""
    answer = view.data.get("answer")
    if answer is None:
        raise WorkflowError(
            f"prompt {view.prompt.id!r}: reward {reward!r} needs data['answer'], found "
            f"{', '.join(sorted(view.data)) or 'no data'}"
        )
    return answer
