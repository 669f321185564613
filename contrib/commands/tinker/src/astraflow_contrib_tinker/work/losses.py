"""Losses by name: those that the client documents, and every algorithm that is installed.

The former are sums over all targets, as Tinker's documentation defines them; a target's part is computed from its own inputs
alone, but for ``gspo``, where it is computed from those of its sequence. They use methods of tensors only, which those of PyTorch
have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_contrib_tinker.wire.datums import Datum, GradientRequest, numbers
from astraflow_contrib_tinker.work.rows import Floats, Rows
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.errors import ConfigError, PluginError, Refused
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs

LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
RATIO_MASK = "sequence_ratio_mask"
NO_STABILITY_INFO = (
    "this server keeps nothing of a sampled sequence, which the loss stable_reinforce needs; sample without it, and choose "
    "importance_sampling, ppo, cispo, gspo or an algorithm as loss_fn"
)
PER_TOKEN = {"reference": "reference_logprobs", "proximal": "proximal_logprobs", "values": "values"}
"""What an algorithm may need → the name under which a client gives it for each target."""
OWN_PASS = frozenset({"entropy"})
"""The direct result of the loss."""


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """``given``: inputs that each datum needs in addition to target_tokens; ``keys``: of loss_fn_config, name → default, NaN
    without one; ``per_target``: the loss of each target."""

    given: tuple[str, ...]
    keys: Mapping[str, float]
    per_target: Callable[[LossInputs, Mapping[str, float]], Any]


def _cross_entropy(inputs: LossInputs, keys: Mapping[str, float]) -> Any:
    return -inputs.logprobs * inputs.weights["weights"]


def _importance_sampling(inputs: LossInputs, keys: Mapping[str, float]) -> Any:
    return -(inputs.logprobs - inputs.behaviour).exp() * inputs.advantages


def _ppo(inputs: LossInputs, keys: Mapping[str, float]) -> Any:
    """Schulman et al. 2017, arXiv:1707.06347, without the mean."""
    ratio = (inputs.logprobs - inputs.behaviour).exp()
    clipped = ratio.clamp(inputs.weights[LOW], inputs.weights[HIGH])
    return -(ratio * inputs.advantages).minimum(clipped * inputs.advantages)


def _cispo(inputs: LossInputs, keys: Mapping[str, float]) -> Any:
    """MiniMax 2025, arXiv:2506.13585: the clipped ratio is a weight without gradient."""
    ratio = (inputs.logprobs - inputs.behaviour).exp()
    clipped = ratio.clamp(inputs.weights[LOW], inputs.weights[HIGH]).detach()
    return -clipped * inputs.logprobs * inputs.advantages


def _gspo(inputs: LossInputs, keys: Mapping[str, float]) -> Any:
    """Zheng et al. 2025, arXiv:2507.18071, eq. 13 (GSPO-token), without the means: the ratio of a sequence is ``exp`` of its mean
    log-ratio where the mask is not 0, and has the gradient of each target's own log-prob."""
    marked = (inputs.weights[RATIO_MASK] != 0).to(inputs.behaviour.dtype)
    gaps = (inputs.logprobs.detach() - inputs.behaviour) * marked
    total, count = (gaps.new_zeros(inputs.rows).index_add(0, inputs.row, v) for v in (gaps, marked))
    mean = (total / count.clamp(min=1))[inputs.row]
    ratio = (mean + inputs.logprobs - inputs.logprobs.detach()).exp()
    clipped = ratio.clamp(inputs.weights[LOW], inputs.weights[HIGH])
    return -(ratio * inputs.advantages).minimum(clipped * inputs.advantages)


def _dro(inputs: LossInputs, keys: Mapping[str, float]) -> Any:
    """Richemond et al. 2024, arXiv:2405.19107, on targets."""
    gap = inputs.logprobs - inputs.behaviour
    return -(inputs.logprobs * inputs.advantages - 0.5 * keys["beta"] * gap * gap)


_SAMPLED = ("logprobs", "advantages")
_CLIP = {LOW: 0.8, HIGH: 1.2}
LOSSES = {
    "cross_entropy": NamedLoss(("weights",), {}, _cross_entropy),
    "importance_sampling": NamedLoss(_SAMPLED, {}, _importance_sampling),
    "ppo": NamedLoss(_SAMPLED, _CLIP, _ppo),
    "cispo": NamedLoss(_SAMPLED, _CLIP, _cispo),
    "gspo": NamedLoss((*_SAMPLED, RATIO_MASK), {LOW: 1 - 3e-4, HIGH: 1 + 4e-4}, _gspo),
    "dro": NamedLoss(_SAMPLED, {"beta": math.nan}, _dro),
}


class SummedLoss:
    """A :class:`NamedLoss` as an algorithm: the sum over the targets of a batch."""

    needs: frozenset[str] = frozenset()

    def __init__(self, loss: NamedLoss, keys: Mapping[str, float]) -> None:
        self._loss, self._keys = loss, keys

    def advantages(self, batch: Batch) -> Floats:
        """Those that the client gave."""
        assert batch.advantages is not None
        return batch.advantages

    def weights(self, batch: Batch) -> dict[str, Floats]:
        """Those that the client gave."""
        return batch.weights

    def loss(self, inputs: LossInputs) -> Loss:
        """The loss of one micro-batch."""
        return Loss({"loss": (1.0, self._loss.per_target(inputs, self._keys).sum())})


def prepared(
    request: GradientRequest, rows: Rows, catalog: Catalog, context: ComponentContext
) -> tuple[Algorithm, Batch]:
    """The loss of a request and the batch that it is computed on; :class:`Refused` names what is unknown or missing."""
    if (named := LOSSES.get(request.loss)) is not None:
        return _summed(named, request, rows)
    return _of_plugin(request, rows, catalog, context)


def _summed(named: NamedLoss, request: GradientRequest, rows: Rows) -> tuple[Algorithm, Batch]:
    data = request.data
    for name in named.given:
        _needs(request.loss, name, data)
    if (
        any(datum.inputs["target_tokens"].ndim > 1 for datum in data)
        and request.loss != "cross_entropy"
    ):
        raise Refused(
            400, f"{request.loss} takes one target for each token; several need cross_entropy"
        )
    if RATIO_MASK in named.given:
        _check_ratios(request.loss, rows, data)
    keys = numbers(request.config, named.keys)
    batch, zeros = rows.batch, np.zeros(len(rows.batch.tokens), np.float32)
    sampled = set(_SAMPLED) <= set(named.given)
    weights: dict[str, Floats] = {}
    for name in {*named.given, *keys} & {"weights", RATIO_MASK, LOW, HIGH}:
        weights[name] = (
            rows.column(data, name)
            if all(name in datum.inputs for datum in data)
            else np.full(len(zeros), keys[name], np.float32)
        )
    batch = replace(
        batch,
        logprobs=rows.column(data, "logprobs") if sampled else zeros,
        advantages=rows.column(data, "advantages") if sampled else zeros,
        weights=weights,
    )
    return SummedLoss(named, keys), batch


def _check_ratios(loss: str, rows: Rows, data: Sequence[Datum]) -> None:
    """:class:`Refused` if a sequence has no ratio, or its targets are in several rows of the batch."""
    if len(rows.own):
        raise Refused(
            400,
            f"{loss} has one ratio for a sequence: every target must be the next token of model_input",
        )
    for number, datum in enumerate(data):
        if not datum.inputs[RATIO_MASK].any():
            raise Refused(
                400, f"data[{number}].{RATIO_MASK} is 0 everywhere; expected 1 at sampled targets"
            )


def _of_plugin(
    request: GradientRequest, rows: Rows, catalog: Catalog, context: ComponentContext
) -> tuple[Algorithm, Batch]:
    data, name = request.data, request.loss
    if name == "stable_reinforce":
        raise Refused(400, f"{name}: {NO_STABILITY_INFO}")
    try:
        selected, config = catalog.validate_options(
            Kind.ALGORITHM, name, _whole_numbers(request.config), "loss_fn_config"
        )
    except ConfigError as error:
        raise Refused(400, str(error)) from error
    except PluginError as error:
        raise Refused(
            400,
            f"unknown loss_fn {name[:80]!r}: known are {', '.join(LOSSES)} and algorithms; {error}",
        ) from error
    algorithm: Algorithm = selected.build(config, context)
    for column in ("advantages", "logprobs"):
        _needs(name, column, data)
    trained = rows.masked(_mask(rows, data))
    columns: dict[str, Floats] = {}
    for need in sorted(algorithm.needs - OWN_PASS):
        given = PER_TOKEN.get(need)
        if given is not None and all(given in datum.inputs for datum in data):
            columns[need] = trained.column(data, given)
        elif need != "proximal":  # the trainer's own log-probs without gradient take their place
            raise Refused(
                400,
                f"{name} needs {need}, which the loss_fn_inputs do not give"
                + (f": add {given}, float32, one for each token" if given else ""),
            )
    if bool(trained.batch.loss_mask[rows.own].any()):
        raise Refused(
            400,
            f"{name} is trained on sampled sequences: a target that it trains must be the next token of model_input",
        )
    batch = replace(
        trained.batch,
        logprobs=trained.column(data, "logprobs"),
        advantages=trained.column(data, "advantages"),
        reference=columns.get("reference"),
        proximal=columns.get("proximal"),
        values=columns.get("values"),
    )
    return algorithm, replace(batch, weights=algorithm.weights(batch))


def _mask(rows: Rows, data: Sequence[Datum]) -> npt.NDArray[np.bool_]:
    """Targets that are trained: those with a ``mask``, or with ``weights``, or else with a log-prob."""
    for name in ("mask", "weights", "logprobs"):
        if all(name in datum.inputs for datum in data):
            return np.asarray(rows.column(data, name) != 0)
    raise AssertionError("log-probs were requested before")


def _needs(loss: str, name: str, data: Sequence[Datum]) -> None:
    for number, datum in enumerate(data):
        if name not in datum.inputs:
            raise Refused(
                400, f"{loss} needs data[{number}].loss_fn_inputs[{name!r}], one for each token"
            )


def _whole_numbers(config: Mapping[str, float | str]) -> dict[str, Any]:
    """Numbers travel as floats; a key that counts expects a whole one."""
    return {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in config.items()
    }
