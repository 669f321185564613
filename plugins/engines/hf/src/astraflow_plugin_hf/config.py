"""The keys of engine ``hf``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt


class HFConfig(ConfigModel):
    """``engine = { use = "hf", … }``"""

    device: str = Field(
        default="auto", description="'cpu', 'cuda', 'cuda:1' …; auto takes CUDA if present."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: float32 on CPU, the checkpoint's elsewhere."
    )
    max_batch: PositiveInt = Field(
        default=256, description="Maximum number of sequences decoded at once."
    )
    max_batch_tokens: PositiveInt = Field(
        default=512, description="Maximum number of tokens per forward pass, including prompts."
    )
    cache_gb: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="GiB for keys and values."
    )
    page_size: Annotated[int, Field(ge=4)] = Field(
        default=64, description="Tokens of one page of the cache."
    )
    threads: PositiveInt = Field(default=1, description="Number of torch threads on CPU.")
    context_length: PositiveInt | None = Field(
        default=None,
        description="Maximum length of a sequence in tokens; default: what model and cache allow.",
    )
