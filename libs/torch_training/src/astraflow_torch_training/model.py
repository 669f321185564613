"""Loads a Hugging Face causal LM as a backbone and a head, and checks that the two are all there is."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from astraflow_core.errors import UserError
from astraflow_torch_training.config import TrainingConfig
from astraflow_torch_training.logprobs import logit_gradients, token_logprobs
from astraflow_torch_training.memory import enough_memory_for_state
from astraflow_torch_training.trees import FLEX, mask_for
from astraflow_torch_weights.images import ImageEncoder, reads_images
from astraflow_torch_weights.qwen3 import load_qwen3
from astraflow_torch_weights.qwen3_config import WEIGHTS, Qwen3Config
from astraflow_torch_weights.routers import RouterReplay
from astraflow_training.micro_batches import MicroBatch

VALUE_HEAD = "value_head"
"""Name of the critic's head among the modules of the loaded model, which is never published."""


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """At each of ``n`` positions, float32 ``[n]``, differentiable: log-probs of the targets; the entropy in
    nats of the distribution and the value of the state before the token, if asked for."""

    logprobs: torch.Tensor
    entropy: torch.Tensor | None
    values: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class CausalLM:
    """``backbone`` gives hidden states, ``head`` turns them into logits over ``vocabulary`` tokens;
    ``whole`` is the loaded model that both belong to. Its weights are float32; with ``autocast`` the
    matrix products run in that dtype. ``critic`` has its own backbone; without one the value head is on
    this backbone. ``replay`` imposes the recorded experts of a micro-batch; a model without it, such as a frozen copy,
    chooses its own. ``images`` turns those of a micro-batch into inputs, if the model reads any."""

    whole: Any
    backbone: Any
    head: Any
    vocabulary: int
    device: torch.device
    autocast: torch.dtype | None
    critic: CausalLM | None = None
    replay: RouterReplay | None = None
    images: ImageEncoder | None = None

    @property
    def context_length(self) -> int | None:
        """The most tokens of a row, as the model's configuration says; ``None`` if it does not."""
        most = getattr(self.whole.config.get_text_config(), "max_position_embeddings", None)
        return most if isinstance(most, int) and most > 0 else None

    def precision(self) -> torch.autocast:
        """The context in which backbone and head are called."""
        return torch.autocast(
            self.device.type, dtype=self.autocast, enabled=self.autocast is not None
        )

    def predict(
        self,
        micro: MicroBatch,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool = False,
        with_values: bool = False,
    ) -> TokenPrediction:
        """What the model says of ``targets`` (int64 ``[n]``) at the positions of ``micro``.

        Only hidden states that predict such a position go through the head.
        """
        with self.precision():
            hidden = self._hidden(micro)
            logprobs, entropy = token_logprobs(
                self.head, hidden, targets, temperature, self.vocabulary, with_entropy
            )
        if not with_values:
            return TokenPrediction(logprobs, entropy, None)
        values = self._value(hidden) if self.critic is None else self.critic.values(micro)
        return TokenPrediction(logprobs, entropy, values)

    def logit_gradients(
        self, micro: MicroBatch, targets: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """:func:`~astraflow_torch_training.logprobs.logit_gradients` of ``targets`` (int64 ``[n]``) at the positions of
        ``micro``: float32 ``[n]``."""
        with torch.no_grad(), self.precision():
            hidden = self._hidden(micro)
            return logit_gradients(self.head, hidden, targets, temperature, self.vocabulary)

    def values(self, micro: MicroBatch) -> torch.Tensor:
        """The value of the state before each position of ``micro``: float32 ``[n]``."""
        if self.critic is not None:
            return self.critic.values(micro)
        with self.precision():
            hidden = self._hidden(micro)
        return self._value(hidden)

    def _value(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self.whole.get_submodule(VALUE_HEAD)
        values: torch.Tensor = head(hidden.float()).squeeze(-1)
        return values

    def _hidden(self, micro: MicroBatch) -> torch.Tensor:
        ids = torch.from_numpy(micro.input_ids).to(self.device)
        arguments: dict[str, Any] = {"use_cache": False}
        if micro.images:
            arguments["inputs_embeds"] = self._image_encoder.embed(ids, micro.images)
        else:
            arguments["input_ids"] = ids
        if micro.position_ids is not None:
            arguments["position_ids"] = torch.from_numpy(micro.position_ids).to(self.device)
        if micro.ends is not None:
            ends = torch.from_numpy(micro.ends).to(self.device)
            arguments["attention_mask"] = mask_for(ends, self.backbone.config)
        if self.replay is not None:
            # It stays until the next pass: checkpointed activations are computed again in the backward pass.
            self.replay.impose(micro.routed, self.device)
        states: torch.Tensor = self.backbone(**arguments).last_hidden_state.flatten(0, 1)
        return states.index_select(0, torch.from_numpy(micro.states).to(self.device))

    @property
    def _image_encoder(self) -> ImageEncoder:
        if self.images is None:
            raise UserError(
                f"the batch has images, and {type(self.whole).__name__} reads none: train a model that reads images, or leave "
                "such prompts out"
            )
        return self.images

    def frozen_copy(self) -> CausalLM:
        """The same model as it is now, never to be trained."""
        whole = copy.deepcopy(self.whole).requires_grad_(False).eval()
        return replace(
            self,
            whole=whole,
            backbone=whole.base_model,
            head=whole.get_output_embeddings(),
            replay=None,
            images=None if self.images is None else self.images.of(whole),
        )


def attention_of(config: TrainingConfig, device: torch.device) -> str:
    """The implementation of attention, by the name that transformers gives it: the key ``attention``, where
    ``'auto'`` is flash attention if the device, the dtype, the layout and the installed packages allow it.

    Raises :class:`UserError` for FlexAttention on a CPU, of which PyTorch computes no gradients there."""
    if config.attention == FLEX and device.type != "cuda":
        raise UserError(
            f"attention = {FLEX!r} needs CUDA, and the device is {device.type!r}; leave attention = 'auto', which computes "
            "layout = 'tree' with a mask"
        )
    if config.attention != "auto":
        return config.attention
    flash = device.type == "cuda" and config.compute_dtype == "bfloat16" and config.layout != "tree"
    if not flash:
        return "sdpa"
    from transformers.utils import is_flash_attn_2_available

    return "flash_attention_2" if is_flash_attn_2_available() else "sdpa"


def load_model(
    folder: Path,
    device: torch.device,
    attention: str,
    gradient_checkpointing: bool,
    autocast: torch.dtype | None,
    like_outline: bool = False,
) -> CausalLM:
    """Load a Hugging Face folder in float32 with dropout off: by transformers, unless :mod:`astraflow_torch_weights.qwen3` computes the
    same on a CPU. ``like_outline``: always by transformers, with the buffers that :func:`outline` has.

    Raises :class:`UserError` if it cannot be loaded, if weights are missing or pickled, or if the model does more
    than a linear head on its last hidden states (a soft cap or a scale on the logits).
    """
    plain = None
    simple = device.type == "cpu" and attention == "sdpa" and not gradient_checkpointing
    if simple and not like_outline:
        plain = Qwen3Config.read(folder)
    try:
        if plain is not None:
            whole = load_qwen3(plain, load_file(folder / WEIGHTS), torch.float32)
        else:
            whole = _by_transformers(folder, attention)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"cannot load {folder} as a Hugging Face causal LM: {error}") from error
    with enough_memory_for_state("the weights"):
        whole = whole.to(device)
    model = _prepared(whole, device, gradient_checkpointing, autocast)
    if reads_images(whole.config):
        model = replace(model, images=ImageEncoder(folder, whole))
    _check_head(model, folder)
    return model


def _by_transformers(folder: Path, attention: str) -> Any:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # this is a service with a log, not a terminal
    config = _config(folder)
    _refuse_pickles(folder)
    whole, info = _loader(config).from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation=attention,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"{folder} lacks {len(missing)} weights of {type(whole).__name__}, among them "
            f"{', '.join(missing[:3])}: they would be initialised at random"
        )
    return whole


def outline(folder: Path, attention: str, gradient_checkpointing: bool) -> CausalLM:
    """What :func:`load_model` makes of the same folder, without weights: on the device ``meta``."""
    try:
        with torch.device("meta"):
            config = _config(folder)
            whole = _loader(config).from_config(
                config, dtype=torch.float32, attn_implementation=attention
            )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise UserError(f"{folder} does not describe a Hugging Face causal LM: {error}") from error
    return _prepared(whole, torch.device("meta"), gradient_checkpointing, None)


def _prepared(
    whole: Any, device: torch.device, gradient_checkpointing: bool, autocast: torch.dtype | None
) -> CausalLM:
    whole.train(gradient_checkpointing)  # transformers checkpoints in training mode only
    if gradient_checkpointing:
        whole.activation_checkpointing_enable({"use_reentrant": False})
    head = whole.get_output_embeddings()
    return CausalLM(
        whole,
        whole.base_model,
        head,
        head.weight.shape[0],
        device,
        autocast,
        replay=RouterReplay(whole),
    )


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    _switch_off_dropout(config)
    return config


def _loader(config: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM


def _refuse_pickles(folder: Path) -> None:
    """Refuse weights in pickles, since reading a pickle runs the code in it."""
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
        raise UserError(
            f"{folder} has weights only in *.bin, which are pickles and are not loaded; if you trust them, convert "
            "them to safetensors as safetensors: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) of "
            "transformers"
        )


def _switch_off_dropout(config: Any) -> None:
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
            setattr(config, name, 0.0)


@torch.no_grad()
def _check_head(model: CausalLM, folder: Path) -> None:
    ids = torch.arange(4, device=model.device)[None, :] % model.vocabulary
    with model.precision():
        expected = model.whole(input_ids=ids, use_cache=False).logits
        got = model.head(model.backbone(input_ids=ids, use_cache=False).last_hidden_state)
    if got.shape != expected.shape or not torch.allclose(got, expected, rtol=1e-4, atol=1e-4):
        raise UserError(
            f"cannot train {type(model.whole).__name__} of {folder}: its logits are not a linear function of its "
            "last hidden states (final_logit_softcapping, logit_scale, logits_scaling?)"
        )
