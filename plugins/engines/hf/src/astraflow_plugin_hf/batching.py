"""The model, and the thread of transformers that decodes with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging as transformers_logging

from astraflow_core.errors import EngineLost, UserError, WeightsError
from astraflow_plugin_hf.config import HFConfig
from astraflow_plugin_hf.routing import BatchRouting
from astraflow_plugin_hf.sampler import Record, Sampler
from astraflow_serving.model_folder import ModelFolder
from astraflow_serving.tokens import long_stops, single_stops
from astraflow_torch_weights.device import engine_device
from astraflow_torch_weights.stacked_experts import as_checkpoint

_GIB = 1 << 30
_JOIN_S = 30.0
_ENDED = "the decoding thread of transformers has ended"


class Batching:
    """A running manager. What blocks (:meth:`halt`, :meth:`go_on`, :meth:`load`, :meth:`score`,
    :meth:`stop`) has to be called by one and the same thread, as transformers counts pauses by thread."""

    def __init__(self, path: Path, config: HFConfig, seed: int) -> None:
        """Load ``path``; raises :class:`UserError` if it cannot be served."""
        self.folder = ModelFolder.read(path)
        self.device = engine_device("hf", config.device)
        torch.set_num_threads(config.threads)
        transformers_logging.disable_progress_bar()  # this is a service with a log, not a terminal
        dtype = "float32" if config.dtype == "auto" and self.device.type == "cpu" else config.dtype
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation="sdpa"
            )
        except (OSError, ValueError) as error:
            raise UserError(f"engine 'hf' cannot load {path}: {error}") from error
        self.model = model.to(self.device).requires_grad_(False).eval()
        blocks = self._blocks(config)
        room = min(self.folder.config.positions, blocks * config.page_size)
        self.context_length = min(room, config.context_length or room)
        self.sampler = Sampler(seed, self.device)
        self.manager = self.model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1),
            ContinuousBatchingConfig(
                page_size=config.page_size,
                num_blocks=blocks,
                max_batch_tokens=config.max_batch_tokens,
                max_requests_per_batch=config.max_batch,
                # A prefix cached under one version must not be read under another.
                allow_block_sharing=False,
                # The sampler is plain Python between two steps.
                use_cuda_graph=False,
                use_async_batching=False,
                auto_switch_to_flash=False,
            ),
        )
        self.routing = BatchRouting(self.model, self.sampler, self._in_pass)
        processors = self.manager.logit_processor
        processors.logits_processor[:] = [self.sampler]
        processors.tensors_required = 1
        processors.do_processing = True
        self._window: AbstractContextManager[None] | None = None
        # A thread is a daemon if the one that starts it is; this one would hold up the end of a process
        # that did not get to close its engine.
        starter = threading.Thread(target=self.manager.start, daemon=True)
        starter.start()
        starter.join()

    def _in_pass(self) -> Sequence[Any]:
        found: Sequence[Any] = self.manager.batch_processor.inputs_and_outputs.requests_in_batch
        return found

    def _blocks(self, config: HFConfig) -> int:
        text = self.model.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        per_token = 2 * text.num_hidden_layers * heads * size * self.model.dtype.itemsize
        return max(1, int(config.cache_gb * _GIB / (per_token * config.page_size)))

    @property
    def halted(self) -> bool:
        """Whether nothing is decoded."""
        return self._window is not None

    def begin(self, record: Record, failed: Callable[[Exception], None]) -> None:
        """Give a request to the scheduler; called on the event loop, where ``failed`` is called too."""

        def delivered(output: Any) -> None:
            if output.error is not None:
                failed(EngineLost(f"transformers stopped decoding: {output.error}"))

        sampling = record.request.sampling
        self.sampler.enter(record)
        self.manager.register_result_handler(record.identifier, delivered)
        accepted = self.manager.add_request(
            record.request.prompt.tolist(),
            request_id=record.identifier,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=single_stops(sampling, self.folder.config.eos) or -1,
        )
        if accepted is None:
            raise EngineLost(_ENDED)

    def _check_alive(self) -> None:
        if not self.manager.is_running():
            raise EngineLost(_ENDED)

    def stops(self, request: Any) -> list[tuple[int, ...]]:
        """All that ends a request."""
        singles = single_stops(request.sampling, self.folder.config.eos)
        return [*((token,) for token in singles), *long_stops(request.sampling)]

    def drop(self, record: Record) -> None:
        """Forget a request. One that ended otherwise than the scheduler would know is cancelled there."""
        self.sampler.leave(record)
        router = self.manager.output_router
        if router.result_handlers.pop(record.identifier, None) is not None:
            self.manager.cancel_request(record.identifier)

    def halt(self) -> None:
        """Return when no step runs; none will until :meth:`go_on`."""
        if self._window is None:
            self._check_alive()
            window = self.manager.pause()
            window.__enter__()
            self._window = window

    def go_on(self) -> None:
        """Undo :meth:`halt`."""
        if self._window is not None:
            window, self._window = self._window, None
            window.__exit__(None, None, None)

    def load(self, file: Path, version: int) -> None:
        """Copy every tensor of ``file`` over the parameter of that name; halted. Everything is checked before
        the first byte changes."""
        self.folder.check((file,))
        targets = as_checkpoint(self.model)
        if unknown := sorted(self.folder.tensors.keys() - targets.keys()):
            raise WeightsError(
                f"the model as transformers loads it has no {', '.join(unknown[:5])}: it can be served, but "
                "not updated"
            )
        try:
            with safe_open(file, framework="pt") as tensors, torch.no_grad():
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    targets[name].copy_(tensors.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"cannot read {file} as safetensors: {error}") from error
        self.sampler.version = version

    def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Raw log-probs float32 ``[T]``, the first is 0; between two steps."""
        self._check_alive()
        with self.manager.pause(), torch.inference_mode():
            ids = torch.from_numpy(tokens.astype(np.int64)).to(self.device)
            logits = self.model(input_ids=ids[None], use_cache=False).logits[0, :-1]
            found = logits.float().log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        return np.concatenate([np.zeros(1, np.float32), found.cpu().numpy()]).astype(np.float32)

    def stop(self) -> None:
        """End the thread."""
        self.go_on()
        self.manager.stop(block=True, timeout=_JOIN_S, hard_stop=True)
