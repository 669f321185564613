"""The experts that a model chooses for the tokens of requests, where transformers batches these continuously.

A pass of its scheduler reads some tokens of several requests, one after the other in one row: a whole prompt, a part of one, or
the last token that was sampled. Which, its inputs say; the routers are hooked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from astraflow_plugin_hf.sampler import Sampler
from astraflow_torch_weights.routers import RouterRecorder

_OF_BATCHES = "logits_indices"
"""An argument of passes of the scheduler and of no others."""


class BatchRouting:
    """Notes the experts of tokens with the records of ``sampler`` whose requests ask for them. ``in_pass``: the requests of the
    pass that begins, as transformers keeps them."""

    def __init__(self, model: Any, sampler: Sampler, in_pass: Callable[[], Sequence[Any]]) -> None:
        self.recorder = RouterRecorder(model)
        self._sampler, self._in_pass = sampler, in_pass
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after)

    def _before(self, model: Any, inputs: Any, arguments: dict[str, Any]) -> None:
        if _OF_BATCHES in arguments and self._sampler.routed:
            self.recorder.begin()

    def _after(self, model: Any, inputs: Any, outputs: Any) -> None:
        if not self.recorder.recording:
            return
        experts, first = self.recorder.taken(), 0
        for each in self._in_pass():
            last = first + each.query_length
            # What is read in the pass has been counted already.
            read = each.state.position_offset - each.query_length
            self._sampler.note_experts(each.state.request_id, read, experts[first:last])
            first = last
