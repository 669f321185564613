"""The keys of the engine ``torch``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt


class TorchEngineConfig(ConfigModel):
    """``engine = { use = "torch", … }``"""

    device: str = Field(
        "auto", description="'cpu', 'cuda', 'cuda:1' …; 'auto' selects CUDA if available."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Data type of weights and cache; 'auto': float32 on CPU, the checkpoint's on CUDA.",
    )
    max_batch: PositiveInt = Field(256, description="Maximum number of sequences decoded at once.")
    max_prefill_tokens: PositiveInt = Field(
        8192, description="Maximum prompt tokens of one forward pass, padding included."
    )
    cache_gb: Annotated[float, Field(gt=0)] = Field(
        4.0, description="Memory for keys and values in GiB; requests wait when it is full."
    )
    threads: PositiveInt = Field(1, description="Number of torch threads on CPU.")
    speculation: Literal["none", "history"] = Field(
        "history",
        description="Guess the next tokens of a sequence from those sampled before, and verify several in one forward pass "
        "while that is faster; the same tokens are sampled with 'none'.",
    )
    history_tokens: Annotated[int, Field(ge=1, le=1 << 26)] = Field(
        1 << 19,
        description="Number of tokens that guesses are taken from, 69 bytes each; rounded up to a power of two.",
    )
    stored_drafts_kb: Annotated[int, Field(ge=0, le=4000)] = Field(
        0,
        description="KB of earlier samples of its prompt that each task adds to what guesses are taken from, 5 bytes a token, "
        "from the rollout store of the run: guesses after a restart, and from other RaaS. 0: none.",
    )
    broadcast_deadline_s: Annotated[float, Field(gt=0)] = Field(
        30.0, description="Maximum duration of a broadcast of a version, including the rendezvous."
    )
    context_length: PositiveInt | None = Field(
        None,
        description="Maximum length of a sequence in tokens; default: what the model and cache_gb allow.",
    )
    live_adapters: Annotated[int, Field(ge=0, le=64)] = Field(
        0,
        description="Maximum number of versions at once if they are adapters: they are not merged, and a request finishes on the "
        "version with which it began; with max_staleness + 1 no row that is fresh enough mixes versions. 0: adapters are merged, "
        "and all requests continue on the newest version.",
    )
    batch_invariant: bool = Field(
        False,
        description="Compute in an order that depends on the tokens of a sequence only, as a trainer 'torch' with this key does: "
        "their log-probs are then bitwise equal.",
    )

    @model_validator(mode="after")
    def _drafts_are_verified(self) -> Self:
        if self.stored_drafts_kb and self.speculation == "none":
            raise ValueError(
                'stored_drafts_kb needs speculation = "history", which verifies drafts'
            )
        return self

    @model_validator(mode="after")
    def _batch_invariant_alone(self) -> Self:
        if self.batch_invariant and self.dtype == "bfloat16":
            raise ValueError('batch_invariant needs dtype = "float32" (or "auto")')
        if self.batch_invariant and self.live_adapters:
            raise ValueError(
                "batch_invariant needs live_adapters = 0: its kernels know merged adapters only"
            )
        return self
