"""Golden values of an algorithm: computed independently and stored as JSON beside its tests.

::

    {"made_by": "golden.py, float64 NumPy",
     "cases": [{"variant": "mine (defaults)", "step": 3,
                "given": {"version": 5, "lengths": [3, 2], "loss_mask": [false, true, …], …,
                          "current_logprobs": […], "entropy": […]},
                "expected": {"advantages": […], "weights": {"policy": […]}, "terms": {"policy": 0.25},
                             "metrics": {"clip_fraction": 0.5}, "gradient": […]}}]}

``given`` holds the arrays of :class:`astraflow_core.types.Batch` that the algorithm reads (log-probs of the
behaviour policy as ``logprobs``) and what the model predicts: ``current_logprobs`` and, if it is needed,
``entropy``. ``terms`` are coefficient × sum, ``gradient`` is that of the whole loss to the current
log-probs. Advantages are compared at trained tokens. ``variant`` is a label of ``Subject.variants``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch
from astraflow_testing.conformance._algorithms import loss_cases as cases

RELATIVE, ABSOLUTE = 2e-6, 1e-7
"""Advantages and weights are float32, so what is made of them is no more exact."""
_DTYPES: dict[str, npt.DTypeLike] = {
    "lengths": np.int32, "tokens": np.int32, "loss_mask": np.bool_, "versions": np.int32,
    "group": np.int64, "trajectory": np.int64, "group_size": np.int32,
}  # fmt: skip


@dataclass(frozen=True)
class Golden:
    """One case: a variant, the update it is made in, what is given and what is expected."""

    variant: str
    step: int
    given: Mapping[str, Any]
    expected: Mapping[str, Any]

    def difference(self, torch: Any, algorithm: Algorithm) -> str:
        """Differences from the algorithm's result; empty if there are none."""
        case = cases.complete(algorithm, self._case())
        batch, mask = case.batch, case.batch.loss_mask
        assert batch.advantages is not None
        found = cases.outcome(torch, algorithm, case, step=self.step)
        want = self.expected
        pairs: dict[str, tuple[Any, Any]] = {
            "advantages": (batch.advantages[mask], np.array(want["advantages"])[mask])
        }
        pairs |= {
            f"weights of {term!r}": (batch.weights.get(term, np.zeros(len(mask))), share)
            for term, share in want["weights"].items()
        }
        for part in ("terms", "metrics"):
            got = getattr(found, part)
            if got.keys() != want[part].keys():
                return f"{part} are {sorted(got)}, not {sorted(want[part])}"
            pairs |= {f"{part[:-1]} {key!r}": (got[key], want[part][key]) for key in got}
        pairs["gradient"] = (found.gradient, want["gradient"])
        for what, (got, right) in pairs.items():
            got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
            wrong = ~np.isclose(got, right, rtol=RELATIVE, atol=ABSOLUTE)
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                return f"{what} is {got.flat[at]:.9g} at {at}, expected {right.flat[at]:.9g}"
        return ""

    def _case(self) -> cases.Case:
        known = {entry.name for entry in fields(Batch)}
        arrays: dict[str, npt.NDArray[Any]] = {
            name: np.array(value, dtype=_DTYPES.get(name, np.float32))
            for name, value in self.given.items()
            if name in known and isinstance(value, list)
        }
        rows, size = len(arrays["lengths"]), int(arrays["lengths"].sum())
        defaults: dict[str, Any] = {
            "tokens": np.zeros(size, np.int32),
            "group": np.arange(rows, dtype=np.int64),
            "trajectory": np.arange(rows, dtype=np.int64),
        }
        version = int(self.given["version"])
        batch = Batch(id="golden", policy="solver", version=version, **(defaults | arrays))
        current = np.array(self.given["current_logprobs"], dtype=np.float64)
        entropy = np.array(self.given.get("entropy", np.zeros(size)), dtype=np.float64)
        return cases.Case(batch, current, entropy)


def read_golden(file: Path) -> list[Golden]:
    """The cases of a file."""
    held = json.loads(file.read_text(encoding="utf-8"))
    return [Golden(**case) for case in held["cases"]]
