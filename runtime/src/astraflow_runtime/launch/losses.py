"""One loss on arrays that are given: what a trainer makes of an algorithm, without a run or a model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from astraflow_core.catalog import Catalog
from astraflow_core.errors import UserError
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ComponentContext, LossInputs, NamedRewards, RunInfo
from astraflow_runtime.dataflow.rows.stamping import stamped
from astraflow_runtime.trainer.updates.checks import check_given
from astraflow_runtime.trainer.updates.update import effective_sizes, prepare

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
POLICY = "policy"
KINDS = {"f": "floating-point numbers", "i": "integers", "b": "booleans"}
OF_TOKENS = {
    "logprobs": "f",
    "loss_mask": "b",
    "current": "f",
    "reference": "f",
    "proximal": "f",
    "values": "f",
    "logit_gradients": "f",
    "predicted_values": "f",
    "entropy": "f",
    "turn_rewards": "f",
    "teacher_logprobs": "f",
    "versions": "i",
}
"""Arrays with one entry per token, and the kind of their entries."""
OF_ROWS = {"rewards": "f", "lengths": "i", "group": "i", "trajectory": "i"}
NAMED = "named_rewards"
REQUIRED = ("logprobs", "loss_mask", "rewards")
NEEDED = {
    "reference": "log-probs of the reference model",
    "proximal": "log-probs at the start of the update",
    "values": "what the value model gave before each token",
    "logit_gradients": "1 - 2 p + the sum of p² over the vocabulary, p the probability of the token",
    "entropy": "the entropy of the distribution at each token",
}


@dataclass(frozen=True)
class LossEvaluation:
    """The result of :func:`evaluate_loss`; arrays per token have the shape of the inputs, float64.

    ``loss`` is the sum of ``terms``, name → coefficient × weighted sum. ``gradients``: of the loss, by ``logprobs`` (the
    current ones), and by ``entropy`` and ``predicted_values`` where the algorithm reads them. ``advantages``;
    ``weights``: term → the share of each token. ``metrics`` as of one update of a run. ``needs``: what the algorithm
    needed.
    """

    loss: float
    terms: dict[str, float]
    gradients: dict[str, Floats]
    advantages: Floats
    weights: dict[str, Floats]
    metrics: dict[str, float]
    needs: frozenset[str]


def evaluate_loss(
    name: str, keys: Mapping[str, Any], batch: Mapping[str, Any], *, step: int = 0
) -> LossEvaluation:
    """The loss of the installed algorithm ``name``, configured by ``keys`` as in ``policies.NAME.algorithm``, on one
    mini-batch: as a trainer computes it, in double precision (advantages and weights are float32, as in a run).

    Arrays per token are padded, ``[R, T]``, or packed, ``[N]`` with ``lengths`` (int ``[R]``). Of those in ``batch`` these
    are required: ``logprobs``, of the policy that sampled; ``loss_mask`` (bool), the trained tokens; ``rewards``
    (``[R]``). Optional: ``current``, the log-probs to be trained (default: as sampled); ``group`` (int ``[R]``, default:
    all rows are one group) and ``trajectory`` (default: one per row), the rows being whole groups; ``reference``,
    ``proximal``, ``values``, ``entropy``, ``logit_gradients``, if the algorithm needs them; ``predicted_values`` (default: ``values``);
    ``versions`` (int, default 0), as the batch updates the version after the newest; ``turn_rewards``, at the last token
    of each turn, 0 elsewhere; ``teacher_logprobs``; ``named_rewards``, name → what each row earned under it (``[R]``). Other values outside the
    mask have no influence. ``step`` counts updates, for schedules.

    Raises :class:`UserError` for a name, key or array that does not fit.
    """
    torch = _torch()
    algorithm = _built(name, keys)
    arrays, shape = _checked({key: given for key, given in batch.items() if key != NAMED})
    named = _named(batch.get(NAMED) or {}, len(arrays["rewards"]))
    for need in sorted(algorithm.needs & NEEDED.keys() - arrays.keys()):
        _refuse(f"{name} with these keys needs {need!r}, {NEEDED[need]}: give it, one per token")
    made = prepare(_packed(arrays, named), _Given(arrays), algorithm)
    if "current" in algorithm.needs:
        made = replace(made, current=arrays["current"].astype(np.float32))
    weights = algorithm.weights(made)
    check_given(made, name, {f"weights[{term!r}]": share for term, share in weights.items()})
    made = replace(made, weights=weights)
    inputs = _inputs(torch, algorithm, made, arrays, step)
    loss = algorithm.loss(inputs)
    # As in a run, a term whose coefficient is 0 takes no part.
    terms = {term: share * value for term, (share, value) in loss.terms.items() if share}
    total = sum(terms.values())
    if torch.is_tensor(total) and total.requires_grad:
        total.backward()
    leaves = {
        "logprobs": inputs.logprobs,
        "entropy": inputs.entropy,
        "predicted_values": inputs.predicted_values,
    }

    def shaped(values: Array | None) -> Floats:
        assert values is not None
        return np.asarray(values, np.float64).reshape(shape)

    return LossEvaluation(
        loss=_number(total),
        terms={term: _number(value) for term, value in terms.items()},
        gradients={
            leaf: shaped(np.zeros(shape) if given.grad is None else given.grad.numpy())
            for leaf, given in leaves.items()
            if given is not None
        },
        advantages=shaped(made.advantages),
        weights={term: shaped(share) for term, share in weights.items()},
        metrics=effective_sizes({key: _number(value) for key, value in loss.metrics.items()}),
        needs=algorithm.needs,
    )


class _Given:
    """In place of a trainer: what was given."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """The reference log-probs, or those of the proximal policy."""
        name = "reference" if model == "reference" else "proximal"
        return self._arrays[name].astype(np.float32)

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """The values."""
        return self._arrays["values"].astype(np.float32)

    def logit_gradients(self, batch: Batch) -> npt.NDArray[np.float32]:
        """The squared lengths of gradients by the logits."""
        return self._arrays["logit_gradients"].astype(np.float32)

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """Nothing is trained."""
        raise AssertionError("a loss is evaluated, not trained")


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _refuse(problem: str) -> NoReturn:
    raise UserError(f"evaluate_loss: {problem}")


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            "evaluate_loss: the losses are functions of tensors of torch, which is not installed; "
            "pip install 'astraflow-plugin-losses[runtime]'"
        ) from error


def _built(name: str, keys: Mapping[str, Any]) -> Any:
    selected, config = Catalog.discover().validate_options(
        "algorithm", name, dict(keys), "evaluate_loss"
    )
    here = Path()
    run = RunInfo("evaluate_loss", 0, 1, 0, (POLICY,), here)
    context = ComponentContext(run=run, role="trainer", policy=POLICY, seed=0, directory=here)
    return selected.build(config, context)


def _array(name: str, value: Any, kind: str) -> Array:
    """``value``, a tensor for instance, as an array of that kind."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        made = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        _refuse(f"{name} is not an array: {error}")
    # Integers are numbers too; otherwise no kind stands for another.
    if made.dtype.kind not in {"f": "fiu", "i": "iu", "b": "b"}[kind]:
        _refuse(f"{name} has the dtype {made.dtype}; expected {KINDS[kind]}")
    return made.astype({"f": np.float64, "i": np.int64, "b": np.bool_}[kind])


def _checked(batch: Mapping[str, Any]) -> tuple[dict[str, Array], tuple[int, ...]]:
    """The arrays, those per token packed and 0 outside the mask; and the shape in which those were given."""
    known = OF_TOKENS | OF_ROWS | {NAMED: "f"}
    if unknown := sorted(set(batch) - set(known)):
        _refuse(f"unknown {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
    if missing := [name for name in REQUIRED if batch.get(name) is None]:
        _refuse(f"{', '.join(missing)} missing; {', '.join(REQUIRED)} are required")
    arrays = {
        name: _array(name, batch[name], kind)
        for name, kind in known.items()
        if batch.get(name) is not None
    }
    shape = _check_shapes(arrays)
    if not np.isfinite(arrays["rewards"]).all():
        _refuse("rewards has numbers that are not finite")
    mask = arrays["loss_mask"].reshape(-1)
    for name in OF_TOKENS.keys() & arrays.keys():
        values = arrays[name].reshape(-1)
        arrays[name] = (
            values if name == "turn_rewards" else np.where(mask, values, values.dtype.type(0))
        )
        if not np.isfinite(arrays[name]).all():
            _refuse(f"{name} has numbers that are not finite where they count")
    arrays.setdefault("lengths", np.full(len(arrays["rewards"]), shape[-1]))
    arrays.setdefault("current", arrays["logprobs"].astype(np.float32).astype(np.float64))
    return arrays, shape


def _named(given: Any, rows: int) -> NamedRewards | None:
    if not isinstance(given, Mapping):
        _refuse(f"{NAMED} is a {type(given).__name__}; expected a mapping of names to arrays")
    if not given:
        return None
    columns = []
    for name, values in given.items():
        column = _array(f"{NAMED}[{name!r}]", values, "f")
        if column.shape != (rows,) or not np.isfinite(column).all():
            _refuse(f"{NAMED}[{name!r}] has the shape {column.shape}; expected ({rows},), finite")
        columns.append(column)
    earned = np.stack(columns).astype(np.float32)
    none = np.zeros_like(earned)
    return NamedRewards(tuple(map(str, given)), earned, none, none)


def _check_shapes(arrays: Mapping[str, Array]) -> tuple[int, ...]:
    """The shape of the arrays per token."""
    rows, shape = arrays["rewards"].shape, arrays["logprobs"].shape
    if len(rows) != 1 or not rows[0]:
        _refuse(f"rewards has the shape {rows}; expected one number for each row, [R]")
    for name in OF_ROWS.keys() & arrays.keys():
        if arrays[name].shape != rows:
            _refuse(f"{name} has the shape {arrays[name].shape}; expected {rows}, as of rewards")
    if "lengths" not in arrays:
        if len(shape) != 2 or shape[0] != rows[0] or not shape[1]:
            _refuse(
                f"logprobs has the shape {shape}; expected [{rows[0]}, T], padded, or [N] with lengths"
            )
    elif len(shape) != 1:
        _refuse(f"logprobs has the shape {shape}; expected [N], packed, since there are lengths")
    elif arrays["lengths"].min() < 1 or arrays["lengths"].sum() != shape[0]:
        _refuse(f"lengths must be at least 1 and add up to {shape[0]}, the length of logprobs")
    for name in OF_TOKENS.keys() & arrays.keys():
        if arrays[name].shape != shape:
            _refuse(f"{name} has the shape {arrays[name].shape}; expected {shape}, as of logprobs")
    return shape


def _packed(arrays: Mapping[str, Array], named: NamedRewards | None) -> Batch:
    """The batch that a dataflow would serve, its rows being whole groups."""
    rows, mask = len(arrays["rewards"]), arrays["loss_mask"]
    versions = arrays.get("versions", np.zeros(len(mask), np.int64))
    newest = int(versions[mask].max()) if mask.any() else 0
    none = np.zeros(rows, np.float32)
    turn_rewards, teacher = arrays.get("turn_rewards"), arrays.get("teacher_logprobs")
    batch = Batch(
        id="evaluate_loss",
        policy=POLICY,
        version=newest + 1,
        lengths=arrays["lengths"].astype(np.int32),
        tokens=np.zeros(len(mask), np.int32),
        loss_mask=mask,
        logprobs=arrays["logprobs"].astype(np.float32),
        versions=np.where(mask, versions, -1).astype(np.int32),
        rewards=arrays["rewards"].astype(np.float32),
        group=arrays.get("group", np.zeros(rows, np.int64)),
        trajectory=arrays.get("trajectory", np.arange(rows, dtype=np.int64)),
        group_size=none.astype(np.int32),
        group_mean=none,
        group_std=none,
        turn_rewards=None if turn_rewards is None else turn_rewards.astype(np.float32),
        teacher_logprobs=None if teacher is None else teacher.astype(np.float32),
        named_rewards=named,
    )
    return stamped(batch)


def _inputs(
    torch: Any, algorithm: Algorithm, batch: Batch, arrays: Mapping[str, Array], step: int
) -> LossInputs:
    """What a trainer passes to the loss, as one micro-batch."""

    def tensor(values: Array | None, gradient: bool = False) -> Any:
        if values is None:
            return None
        return torch.tensor(values, dtype=torch.float64).requires_grad_(gradient)

    predicted = arrays.get("predicted_values", arrays.get("values"))
    return LossInputs(
        logprobs=tensor(arrays["current"], gradient=True),
        behaviour=tensor(batch.logprobs),
        advantages=tensor(batch.advantages),
        mask=torch.tensor(batch.loss_mask),
        row=torch.tensor(batch.row_of_token),
        rows=len(batch),
        weights={term: tensor(share) for term, share in batch.weights.items()},
        step=step,
        entropy=tensor(arrays["entropy"], gradient=True) if "entropy" in algorithm.needs else None,
        proximal=tensor(batch.proximal),
        reference=tensor(batch.reference),
        values=tensor(batch.values),
        current=tensor(batch.current),
        predicted_values=tensor(predicted, gradient=True) if "values" in algorithm.needs else None,
    )
