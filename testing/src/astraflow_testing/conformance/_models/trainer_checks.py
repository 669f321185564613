"""Comparisons of the trainer suite: log-probs, and the inputs of a loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from astraflow_testing.conformance._models.trainer_rig import (
    DEMANDS,
    PolicyGradient,
    Reference,
    TrainerRig,
    entropies,
    ragged_batch,
    ready,
    to_numpy,
    token_logprobs,
)


def loss_inputs(
    rig: TrainerRig, needs: frozenset[str], model: Path, reference: Reference, tolerance: float
) -> None:
    """Examine what the loss is given in one step of each configuration, with an algorithm of those
    ``needs``."""
    for variant in rig.variants:
        algorithm, trainer = PolicyGradient(needs), rig.build(variant, needs)
        batch = ready(trainer, ragged_batch(), algorithm)
        trainer.step(batch, algorithm, 3)
        logits = reference(model / "model.safetensors", batch)
        logprobs = token_logprobs(logits, batch)
        columns = {
            "logprobs": logprobs,
            "advantages": batch.advantages,
            "reference": logprobs if "reference" in needs else None,
            "proximal": logprobs if "proximal" in needs else None,
            "entropy": entropies(logits, batch) if "entropy" in needs else None,
        }
        # Behaviour log-probs are all different, so they say which token is which.
        place = {float(batch.logprobs[i]): int(i) for i in np.flatnonzero(batch.loss_mask)}
        given: list[int] = []
        for inputs in algorithm.seen:
            trained = to_numpy(inputs.mask)
            at = [place.get(float(b), -1) for b in to_numpy(inputs.behaviour)[trained]]
            given += at
            for name, column in columns.items():
                if column is not None:
                    got = to_numpy(getattr(inputs, name))[trained]
                    close_to(got, column[at], tolerance, f"LossInputs.{name}")
            got = to_numpy(inputs.weights["policy"])[trained]
            close_to(got, batch.weights["policy"][at], 1e-6, "LossInputs.weights")
            row = to_numpy(inputs.row)
            DEMANDS.that(
                bool((np.diff(row) >= 0).all())
                and int(row.max(initial=0)) < inputs.rows
                and len({*zip(row[trained].tolist(), batch.row_of_token[at], strict=True)})
                == len({*batch.row_of_token[at]})
                and inputs.step == 3,
                f"LossInputs: row {row.tolist()} of {inputs.rows}, step {inputs.step}",
                "row is the row of each position within the micro-batch, in order; step as given",
            )
        DEMANDS.that(
            sorted(given) == np.flatnonzero(batch.loss_mask).tolist(),
            f"the loss was given {len(given)} trained tokens; the batch has {batch.trained_tokens}",
            "every trained token is in one micro-batch (types/loss.py)",
        )


def close_to(got: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Fail where a log-prob is further off than ``tolerance``; ``what`` is what gave it."""
    error = np.abs(np.asarray(got, dtype=np.float64) - expected)
    worst = int(np.argmax(error)) if error.size else 0
    DEMANDS.that(
        bool((error <= tolerance).all()),
        f"{what} is {got[worst] if error.size else 0:.6f} at {worst} of {error.size}, "
        f"expected {expected[worst] if error.size else 0:.6f}",
        "log-probs of every token given those before it in its row, logits divided by batch.temperature",
    )
