"""The keys of engine ``openai``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds


class OpenAIConfig(ConfigModel):
    """``engine = { use = "openai", url = "http://HOST:PORT/v1", … }``"""

    url: Annotated[str, Field(pattern=r"^https?://")] = Field(
        description="Base URL of the server, up to and including /v1."
    )
    served_model: str | None = Field(
        default=None,
        description="Name of the model at the server; default: the only one that it lists.",
    )
    tokens: Literal["ids", "text"] = Field(
        default="ids",
        description="ids: the server takes and returns token ids (vLLM's return_token_ids); text: it "
        "speaks text only, so completions are tokenized here and have no log-probs.",
    )
    logprobs: Literal["raw", "processed"] = Field(
        default="raw",
        description="Kind of the server's log-probs: of the raw logits, or of the distribution that was "
        "sampled from (temperature and truncation applied).",
    )
    api_key_env: str | None = Field(
        default=None, description="Variable of the environment that holds the server's key."
    )
    max_batch: PositiveInt = Field(
        default=64,
        description="Maximum number of concurrent requests at the server; others wait in the engine host.",
    )
    context_length: PositiveInt | None = Field(
        default=None,
        description="Maximum length of a sequence in tokens; default: what the server reports, else the model's "
        "folder.",
    )
    retry_s: Seconds = Field(
        default=60.0,
        description="Maximum time to retry a server that is unreachable, overloaded or rate limited.",
    )
    stall_deadline_s: Seconds = Field(
        default=120.0, description="Maximum time of a request without a response or a token."
    )
