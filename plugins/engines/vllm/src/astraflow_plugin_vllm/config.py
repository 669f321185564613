"""The keys of engine ``vllm``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone

PositiveFloat = Annotated[float, Field(gt=0)]
Url = Annotated[str, Field(pattern=r"^(https?://|unix:/)")]
Router = Annotated[str, Field(pattern=r"^https?://")]

NO_DRAFTS = (
    "with drafts of vLLM the tokens and their log-probs are not those of the policy (measured with vLLM 0.32 on a CPU); "
    "leave them out, or use the engine 'torch', whose drafts change neither"
)


class VllmConfig(ConfigModel):
    """``engine = { use = "vllm", … }``"""

    url: Url | tuple[Url, ...] | None = Field(
        default=None,
        description="A server that runs already, 'http://HOST:PORT' or 'unix:PATH', or one for each replica; "
        "default: a child.",
    )
    router: Router | None = Field(
        default=None,
        description="A router, such as vllm-router, in front of all servers of url: requests go there.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="auto: float32 on CPU, else what vLLM chooses for the model."
    )
    tensor_parallel: PositiveInt = Field(default=1, description="Workers that share the model.")
    max_batch: PositiveInt = Field(
        default=256,
        description="Maximum number of concurrent requests at the server; others wait in the engine host.",
    )
    context_length: PositiveInt | None = Field(
        default=None,
        description="Maximum length of a sequence in tokens; default: the model's limit.",
    )
    cache_gb: PositiveFloat | None = Field(
        default=None,
        description="GiB for keys and values; default: 1 on CPU, else by gpu_memory_utilization.",
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="Share of a GPU's memory, weights included."
    )
    eager: bool | None = Field(
        default=None, description="No compilation and no CUDA graphs; default: on CPU only."
    )
    logprobs: Literal["processed", "raw"] = Field(
        default="processed",
        description="Kind of log-probs: of the distribution that was sampled from (temperature and "
        "truncation applied), or of the raw logits.",
    )
    update: Literal["transfer", "reload"] = Field(
        default="transfer",
        description="How a version is loaded: vLLM's protocol in four stages, or reload_weights.",
    )
    chunk_mb: PositiveInt = Field(
        default=512, description="MiB of one chunk of an update by transfer."
    )
    lora_rank: OrNone[Annotated[int, Field(gt=0, le=512)]] = Field(
        default=None,
        description="Maximum rank of adapters that are received as versions; 'none': whole versions only.",
    )
    named_adapters: Annotated[int, Field(ge=0, le=256)] = Field(
        default=0,
        description="Maximum number of adapters that requests name and that sample at once, in addition to the versions; needs lora_rank.",
    )
    sleep_mode: bool = Field(
        default=False, description="Enable sleep and wake (CUDA and ROCm only)."
    )
    threads: PositiveInt = Field(default=1, description="Threads of the workers on CPU.")
    arguments: tuple[str, ...] = Field(
        default=(),
        description="Additional arguments of `vllm serve`; they override those of the engine.",
    )
    start_deadline_s: Seconds = Field(
        default=290.0, description="Maximum time for the server to start."
    )
    control_deadline_s: Seconds = Field(
        default=100.0, description="Maximum duration of a pause, an update or another call."
    )
    stall_deadline_s: Seconds = Field(
        default=120.0,
        description="Maximum time without a sampled token, with running requests, before the server counts as hung.",
    )

    @model_validator(mode="after")
    def _router_has_servers(self) -> Self:
        if self.router is not None and self.url is None:
            raise ValueError("a router needs url: the servers behind it, one for each replica")
        if self.router is not None and self.lora_rank is not None:
            raise ValueError(
                "adapters have a name on each server, which a router cannot resolve: leave router or lora_rank out"
            )
        return self

    @model_validator(mode="after")
    def _named_adapters_have_a_rank(self) -> Self:
        if self.named_adapters and self.lora_rank is None:
            raise ValueError("named_adapters needs lora_rank: the maximum rank of adapters")
        return self

    @model_validator(mode="after")
    def _nothing_drafts(self) -> Self:
        for argument in self.arguments:
            if argument.startswith(("--spec", "-sc")):
                raise ValueError(f"arguments has {argument.partition('=')[0]}: {NO_DRAFTS}")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """Those of ``url``."""
        return (self.url,) if isinstance(self.url, str) else self.url or ()
