"""What all policy losses have in common: needs, KL, entropy, corrections and shares around a surrogate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_losses.config import PolicyConfig, RatioLevel
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.returns import returns_to_go
from astraflow_plugin_losses.schedule import piecewise_linear
from astraflow_plugin_losses.shares import shares

Tensor = Any
C = TypeVar("C", bound=PolicyConfig)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a surrogate reads: tensors ``[N]``, 0 outside ``mask``. ``log_ratio`` is ``current`` minus the
    ``proximal`` policy, clamped if so configured, with gradient."""

    current: Tensor
    proximal: Tensor
    log_ratio: Tensor
    advantages: Tensor
    inputs: LossInputs


class PolicyLoss(ABC, Generic[C]):
    """Base of the family; an algorithm gives ``_advantages`` and ``_surrogate``."""

    def __init__(self, config: C, context: ComponentContext) -> None:
        self._config = config
        wanted = {
            "reference": config.kl_coef > 0,
            "entropy": _ever_nonzero(config.entropy_coef),
            "proximal": config.proximal == "recompute",
        }
        self._needs = frozenset(name for name, needed in wanted.items() if needed)

    @property
    def needs(self) -> frozenset[str]:
        """``reference`` with ``kl_coef``, ``entropy`` with an ``entropy_coef`` that is not always 0,
        ``proximal`` where it is computed again."""
        return self._needs

    @property
    def proximal_in_loss(self) -> bool:
        """Whether nothing but the loss reads proximal log-probs; a penalty in the rewards does."""
        return not self._config.kl_coef or self._config.kl_in == "loss"

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """The advantage of each trained token, 0 elsewhere: float32 ``[N]``."""
        return np.where(batch.loss_mask, self._advantages(batch), 0.0).astype(np.float32)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """The same share of a token in each term, as ``aggregation`` says: float32 ``[N]``. With ``proximal
        = "loglinear"`` also ``behaviour``: the part of the behaviour policy in the proximal one; with another
        aggregation than the mean over tokens ``metrics``, which is that mean."""
        mode = self._config.aggregation
        share = shares(batch, mode, self._config.max_tokens, self._kept(batch))
        given = dict.fromkeys(self._terms(), share)
        if mode != "token_mean":
            given["metrics"] = shares(batch, "token_mean")
        if self._config.proximal == "loglinear":
            age = np.maximum(batch.ages.astype(np.float64), 1.0)
            given["behaviour"] = np.where(batch.loss_mask, 1 / age, 0.0).astype(np.float32)
        return given

    def loss(self, inputs: LossInputs) -> Loss:
        """Term ``policy``, and ``kl`` and ``entropy`` where needed; positions outside the mask have no
        influence, whatever they hold."""
        from astraflow_plugin_losses import corrections, tensors  # torch is not needed before

        config, mask = self._config, inputs.mask

        def trained(values: Tensor) -> Tensor:
            assert values is not None, f"the algorithm declares these needs: {sorted(self.needs)}"
            return tensors.masked(mask, values)

        by = "metrics" if "metrics" in inputs.weights else "policy"
        shares = {name: trained(inputs.weights[name]) for name in {by, *self._terms()}}

        def mean(term: str, values: Tensor) -> Tensor:
            return (shares[term] * values).sum()

        current, behaviour = trained(inputs.logprobs), trained(inputs.behaviour)
        advantages = trained(inputs.advantages)
        proximal = behaviour
        if config.proximal == "recompute":
            proximal = trained(inputs.proximal)
        elif config.proximal == "loglinear":
            part = trained(inputs.weights["behaviour"])
            proximal = part * behaviour + (1 - part) * current.detach()
        log_ratio = current - proximal
        if config.log_ratio_clamp is not None:
            log_ratio = log_ratio.clamp(-config.log_ratio_clamp, config.log_ratio_clamp)
        surrogate, per_token = self._surrogate(
            Tokens(current, proximal, log_ratio, advantages, inputs)
        )

        fixed = log_ratio.detach()
        per_token |= {
            "approx_kl": tensors.k3(fixed),
            "second_moment": (current.detach() - behaviour).square(),
            **tensors.importance("ratio", fixed),
        }
        factors = [
            corrections.correction_weights(c, proximal - behaviour, mask, inputs.row, inputs.rows)
            for c in config.corrections
        ]
        if config.off_policy_delta is not None:
            drift = current.detach() - behaviour
            factors.append(
                corrections.off_policy_sequences(
                    drift, advantages, mask, inputs.row, inputs.rows, config.off_policy_delta
                )
            )
        if factors:
            weight = factors[0]
            for factor in factors[1:]:
                weight = weight * factor
            surrogate = surrogate * weight
            per_token["correction_mean"] = weight
            per_token["correction_square_mean"] = weight.square()
            per_token["masked_fraction"] = (weight == 0).to(weight.dtype)
        terms = {"policy": (1.0, mean("policy", surrogate))}
        metrics = {name: mean(by, values) for name, values in per_token.items()}
        if "kl" in self._terms():
            kl = tensors.kl_estimate(
                current, trained(inputs.reference), config.kl_estimator, config.kl_clamp
            )
            terms["kl"] = (config.kl_coef, mean("kl", kl))
            metrics["kl"] = terms["kl"][1].detach()
        if "entropy" in self._terms():
            entropy = mean("entropy", trained(inputs.entropy))
            terms["entropy"] = (-piecewise_linear(config.entropy_coef, inputs.step), entropy)
            metrics["entropy"] = entropy.detach()
        return Loss(terms=terms, metrics=metrics)

    @abstractmethod
    def _advantages(self, batch: Batch) -> Floats:
        """float64 ``[N]``; positions outside the loss mask do not matter."""

    @abstractmethod
    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, and metrics of each token without gradient."""

    def _at_level(self, tokens: Tokens, level: RatioLevel) -> Tokens:
        """The tokens with the log-ratio of ``level``, clamped once more."""
        from astraflow_plugin_losses import tensors

        if level == "token":
            return tokens
        given, bound = tokens.inputs, self._config.log_ratio_clamp
        log = tensors.at_level(tokens.log_ratio, level, given.mask, given.row, given.rows)
        return replace(tokens, log_ratio=log if bound is None else log.clamp(-bound, bound))

    def _kept(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """The tokens that count in means, bool ``[N]``."""
        return batch.loss_mask

    def _terms(self) -> list[str]:
        terms = ["policy"]
        if self._config.kl_coef and self._config.kl_in == "loss":
            terms.append("kl")
        if "entropy" in self._needs:
            terms.append("entropy")
        return terms

    def _kl_rewards(self, batch: Batch) -> Floats:
        """``-kl_coef · KL(proximal or behaviour, reference)`` at trained tokens, float64 ``[N]``."""
        config = self._config
        if config.kl_in == "loss" or not config.kl_coef:
            return np.zeros(len(batch.tokens))
        import torch  # the estimators are written once

        from astraflow_plugin_losses.tensors import kl_estimate

        old = batch.logprobs if batch.proximal is None else batch.proximal
        assert batch.reference is not None, "the algorithm declares that a reference is needed"
        pair = (
            np.where(batch.loss_mask, v, 0.0).astype(np.float64) for v in (old, batch.reference)
        )
        sampled, reference = (torch.from_numpy(values) for values in pair)
        kl = kl_estimate(sampled, reference, config.kl_estimator, config.kl_clamp).numpy()
        return np.where(batch.loss_mask, -config.kl_coef * kl, 0.0)

    def _per_row(self, batch: Batch, advantages: Floats) -> Floats:
        """Advantages of rows at their tokens, with :meth:`_returns_of_kl`: float64 ``[N]``."""
        return np.repeat(advantages, batch.lengths) + self._returns_of_kl(batch)

    def _returns_of_kl(self, batch: Batch) -> Floats:
        """The returns to go of the KL if it is in the reward (AReaL 1.0.4 with discount and lambda 1), float64
        ``[N]``."""
        return returns_to_go(batch, self._kl_rewards(batch))


def _ever_nonzero(entropy_coef: float | tuple[tuple[float, float], ...]) -> bool:
    if isinstance(entropy_coef, tuple):
        return any(value for _, value in entropy_coef)
    return bool(entropy_coef)
