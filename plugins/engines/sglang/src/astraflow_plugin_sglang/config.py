"""The keys of engine ``sglang``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds

Url = Annotated[str, Field(pattern=r"^https?://")]


class SGLangConfig(ConfigModel):
    """``engine = { use = "sglang", … }``"""

    url: Url | tuple[Url, ...] | None = Field(
        default=None,
        description="A server that runs already, for this engine alone, or one for each replica; default: a child.",
    )
    router: Url | None = Field(
        default=None,
        description="A router, such as sglang-router, in front of all servers of url: requests go there.",
    )
    server_python: str | None = Field(
        default=None,
        description="The interpreter that has SGLang, for a child; default: the engine host's own.",
    )
    port: Annotated[int, Field(gt=0, lt=65536)] | None = Field(
        default=None, description="Loopback port of a child; default: a free port."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Data type of a child's weights; auto: SGLang's choice for the model.",
    )
    tensor_parallel: PositiveInt = Field(default=1, description="Workers of a child, one a GPU.")
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Share of a GPU's memory for weights and cache; default: SGLang's own.",
    )
    arguments: tuple[str, ...] = Field(
        default=(), description="Additional arguments of a child's `sglang.launch_server`."
    )
    max_batch: PositiveInt = Field(
        default=256,
        description="Maximum number of concurrent requests at the server; others wait in the engine host.",
    )
    context_length: PositiveInt | None = Field(
        default=None,
        description="Maximum length of a sequence in tokens; default: the model's limit.",
    )
    keep: Literal["in_place", "retract"] = Field(
        default="in_place",
        description="Keys and values of running requests during a pause: keep them, which needs a server "
        "without overlap scheduler and prefix cache, or compute them again afterwards, with the "
        "weights of that time.",
    )
    update: Literal["disk", "tensor", "distributed"] = Field(
        default="disk",
        description="How a version is loaded: the server reads its file, gets handles of tensors that the "
        "engine host shares, or a broadcast from the engine host.",
    )
    chunk_mb: PositiveInt = Field(
        default=512, description="MiB of one chunk of an update by tensor or distributed."
    )
    start_deadline_s: Seconds = Field(
        default=290.0, description="Maximum time for a child server to start."
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
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """Those of ``url``."""
        return (self.url,) if isinstance(self.url, str) else self.url or ()
