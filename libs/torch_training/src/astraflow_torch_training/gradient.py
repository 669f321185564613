"""The gradient of a mini-batch's loss, summed over its micro-batches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.errors import RunFailed
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, Loss, LossInputs
from astraflow_torch_training.model import CausalLM, TokenPrediction
from astraflow_training.micro_batches import MicroBatch

_SURPRISE = "surprise"
"""Among the sums: minus the log-probs of the trained tokens."""


class Predictor(Protocol):
    """What a loss is made from: a :class:`CausalLM`, or the outputs of a model that ran elsewhere."""

    @property
    def device(self) -> torch.device:
        """The device on which the loss is computed."""

    def predict(
        self,
        micro: MicroBatch,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool,
        with_values: bool,
    ) -> TokenPrediction:
        """See :meth:`CausalLM.predict`."""


@dataclass(slots=True)
class Tally:
    """Sums over micro-batches: scalars on the device, so that nothing waits for it, seconds, and tokens
    computed with and without padding."""

    device: torch.device
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    computed: int = 0
    logprobs: list[tuple[npt.NDArray[np.int64], torch.Tensor]] = field(default_factory=list)
    """Of each micro-batch the positions in the batch and the log-probs there, on the device."""
    entropies: list[tuple[npt.NDArray[np.int64], torch.Tensor]] = field(default_factory=list)
    """The same of the entropies, if the loss uses them."""

    def logprobs_of(self, batch: Batch) -> npt.NDArray[np.float32]:
        """The log-probs of all micro-batches: float32 ``[N]``, 0 at tokens that were not trained."""
        return _scattered(self.logprobs, batch)

    def entropies_of(self, batch: Batch) -> npt.NDArray[np.float32]:
        """The entropies of all micro-batches in nats: float32 ``[N]``, 0 at tokens that were not trained."""
        return _scattered(self.entropies, batch)

    def add(self, name: str, value: torch.Tensor) -> None:
        """Add a scalar to the sum called ``name``."""
        value = value.detach().float()
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def totals(self) -> dict[str, float]:
        """The sums as numbers, in one transfer from the device."""
        if not self.sums:
            return {}
        return dict(zip(self.sums, torch.stack(list(self.sums.values())).tolist(), strict=True))

    @contextlib.contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add the wall seconds of the block to ``name``."""
        started = self._now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - started

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _scattered(
    parts: Iterable[tuple[npt.NDArray[np.int64], torch.Tensor]], batch: Batch
) -> npt.NDArray[np.float32]:
    found = np.zeros(len(batch.tokens), np.float32)
    for positions, values in parts:
        found[positions] = values.float().cpu().numpy()
    return found


def step_metrics(sums: Mapping[str, float], batch: Batch) -> dict[str, float]:
    """The sums of a tally, those of all ranks added up, as metrics of the whole mini-batch ``batch``.

    ``entropy_estimate``: minus the mean log-prob of the trained tokens, in nats; its expectation over tokens that the
    current policy samples is the policy's entropy, and it costs nothing.
    """
    found = dict(sums)
    if (surprise := found.pop(_SURPRISE, None)) is not None:
        found["entropy_estimate"] = surprise / batch.trained_tokens
    return found


def accumulate(
    model: CausalLM,
    batch: Batch,
    algorithm: Algorithm,
    step: int,
    parts: Iterable[MicroBatch],
    tally: Tally,
) -> None:
    """Add the gradient of the loss of every part to the parameters' ``grad``.

    The loss is a sum of shares that were fixed for the whole mini-batch, so the gradient does not depend
    on the cut. ``tally`` receives the sums that :func:`step_metrics` is for: ``loss``, ``loss_<term>``, the
    algorithm's metrics.
    """
    for micro in parts:
        with tally.clock("forward_s"):
            total, _ = forward(model, batch, algorithm, step, micro, tally)
        with tally.clock("backward_s"):
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]


def forward(
    model: Predictor,
    batch: Batch,
    algorithm: Algorithm,
    step: int,
    micro: MicroBatch,
    tally: Tally,
) -> tuple[torch.Tensor, TokenPrediction]:
    """The share of one micro-batch in the loss, a scalar, and the prediction that it was computed from."""
    inputs, predicted = _inputs(model, batch, micro, step, algorithm.needs)
    loss = checked_loss(algorithm, inputs)
    total = torch.zeros((), device=model.device)
    for term, (coefficient, value) in loss.terms.items():
        tally.add(f"loss_{term}", coefficient * value)
        if coefficient:
            total = total + coefficient * value
    for name, value in loss.metrics.items():
        tally.add(name, value)
    tally.add(_SURPRISE, -predicted.logprobs.detach().sum())
    tally.add("loss", total)
    tally.logprobs.append((micro.positions, predicted.logprobs.detach()))
    if predicted.entropy is not None:
        tally.entropies.append((micro.positions, predicted.entropy.detach()))
    tally.tokens += micro.tokens
    tally.computed += micro.computed
    return total, predicted


def checked_loss(algorithm: Algorithm, inputs: LossInputs) -> Loss:
    """The algorithm's loss; :class:`RunFailed` naming it if that is not a :class:`Loss` of scalars."""
    loss: object = algorithm.loss(inputs)
    who = f"loss() of {type(algorithm).__module__}:{type(algorithm).__qualname__}"
    if not isinstance(loss, Loss):
        raise RunFailed(
            f"{who} returned a {type(loss).__name__}; expected an astraflow_core.types.Loss"
        )
    scalars = {f"term {name!r}": value for name, (_, value) in loss.terms.items()}
    scalars |= {f"metric {name!r}": value for name, value in loss.metrics.items()}
    for name, value in scalars.items():
        if not isinstance(value, torch.Tensor) or value.ndim:
            shape = (
                f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            )
            raise RunFailed(
                f"{who} gave {name} as {shape}; expected a scalar tensor, the sum over the micro-batch"
            )
    return loss


def _inputs(
    model: Predictor, batch: Batch, micro: MicroBatch, step: int, needs: frozenset[str]
) -> tuple[LossInputs, TokenPrediction]:
    def there(per_token: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(per_token[micro.positions]).to(model.device)

    def there_if(per_token: npt.NDArray[np.float32] | None) -> torch.Tensor | None:
        return None if per_token is None else there(per_token)

    assert batch.advantages is not None, "advantages are set before a batch is trained on"
    targets = there(batch.tokens.astype(np.int64))
    predicted = model.predict(
        micro, targets, batch.temperature, "entropy" in needs, "values" in needs
    )
    own = "proximal" in needs and batch.proximal is None  # see Trainer.step
    inputs = LossInputs(
        logprobs=predicted.logprobs,
        behaviour=there(batch.logprobs),
        advantages=there(batch.advantages),
        mask=torch.ones(len(micro.positions), dtype=torch.bool, device=model.device),
        row=torch.from_numpy(micro.row).to(model.device),
        rows=micro.rows,
        weights={term: there(share) for term, share in batch.weights.items()},
        step=step,
        entropy=predicted.entropy,
        proximal=predicted.logprobs.detach() if own else there_if(batch.proximal),
        reference=there_if(batch.reference),
        values=there_if(batch.values),
        current=there_if(batch.current),
        predicted_values=predicted.values,
    )
    return inputs, predicted
