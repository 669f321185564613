"""What the measurements of an engine mean that is compared with itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from astraflow_contrib_doctor.frozen import FrozenMeasured, judge_frozen
from astraflow_runtime.preflight.rows import MeasuredRow

TOKENS = np.arange(4, dtype=np.int32)
LOGPROBS = np.array([-1.0, -2.0, -0.5, -3.0], dtype=np.float32)
ROW = MeasuredRow(np.array([1, 2], dtype=np.int32), TOKENS, LOGPROBS, np.zeros(4, dtype=np.int32))
SOUND = FrozenMeasured([ROW, ROW], [LOGPROBS, LOGPROBS + np.float32(1e-4)], [ROW], [ROW])


def levels(measured: FrozenMeasured) -> dict[str, str]:
    found = list(judge_frozen("engines.judge", measured, 0.05))
    assert all(finding.fix for finding in found if finding.level != "ok")
    return {finding.subject.removeprefix("engines.judge "): finding.level for finding in found}


def test_a_sound_engine() -> None:
    assert levels(SOUND) == {"answers": "ok", "greedy": "ok", "score": "ok"}
    assert levels(replace(SOUND, scores=None))["score"] == "ok"


@pytest.mark.parametrize(
    ("wrong", "subject", "level"),
    [
        ({"raw": [replace(ROW, logprobs=-LOGPROBS)], "scores": [-LOGPROBS]}, "answers", "problem"),
        ({"raw": [replace(ROW, logprobs=LOGPROBS * np.nan)], "scores": None}, "answers", "problem"),
        ({"again": [replace(ROW, tokens=TOKENS[::-1])]}, "greedy", "warning"),
        ({"again": [replace(ROW, tokens=TOKENS[:3])]}, "greedy", "warning"),
        ({"scores": [np.roll(LOGPROBS, 1)] * 2}, "score", "problem"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, object], subject: str, level: str) -> None:
    assert levels(replace(SOUND, **wrong))[subject] == level  # type: ignore[arg-type]
