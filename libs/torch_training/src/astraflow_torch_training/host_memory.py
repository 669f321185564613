"""What an optimizer remembers, and models, kept in host memory while another process uses the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from astraflow_torch_training.model import CausalLM

HOST = torch.device("cpu")


class Waiting:
    """The state of ``optimizers`` and the weights of ``models``, moved to host memory until :meth:`end`: copies, on CPU
    too, while parameters stay the same objects."""

    def __init__(
        self, optimizers: Iterable[torch.optim.Optimizer], models: Iterable[CausalLM]
    ) -> None:
        self._remembered: list[tuple[dict[str, Any], str, torch.device]] = [
            (state, key, value.device)
            for optimizer in optimizers
            for state in optimizer.state.values()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        ]
        self._weights = [(p, p.device) for model in models for p in model.whole.parameters()]
        for state, key, _ in self._remembered:
            state[key] = state[key].to(HOST, copy=True)
        for parameter, _ in self._weights:
            parameter.data = parameter.data.to(HOST, copy=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def end(self) -> None:
        """Bring everything to the device where it was."""
        for state, key, device in self._remembered:
            state[key] = state[key].to(device)
        for parameter, device in self._weights:
            parameter.data = parameter.data.to(device)
