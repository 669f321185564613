"""The keys of the rewards."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from astraflow_contrib_rubrics.patterns import compiled
from astraflow_core.config.models import ConfigModel, Name, PartTable, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone

Finite = Annotated[float, Field(allow_inf_nan=False)]


def _names_a_reward(table: dict[str, Any]) -> dict[str, Any]:
    PartTable.model_validate(table)
    return table


Part = Annotated[dict[str, Any], AfterValidator(_names_a_reward)]


class RubricConfig(ConfigModel):
    """``[reward] use = "rubric"`` and ``[reward.parts.NAME]`` for each."""

    parts: Annotated[dict[Name, Part], Field(min_length=1, max_length=32)] = Field(
        description="Name → a reward, `use` and its keys, and its `weight` in the sum, 1 by default."
    )


class JudgeConfig(ConfigModel):
    """``[reward] use = "judge"``"""

    rubric: Annotated[str, Field(min_length=1)] = Field(
        description="Description of a good answer, for the judge."
    )
    engine: OrNone[Name] = Field(
        None, description="The frozen engine that judges, of `[engines.NAME]`."
    )
    url: OrNone[Annotated[str, Field(pattern=r"^https?://")]] = Field(
        None,
        description="Or the base URL of an OpenAI-compatible server, such as `http://host:8000/v1`.",
    )
    model: str = Field("", description="The model that the server is asked for.")
    api_key_variable: str = Field(
        "", description="Environment variable of the RaaS that holds the server's key; '': none."
    )
    highest: PositiveInt = Field(
        10,
        description="The best verdict; 0 is the worst. The reward is the verdict divided by this.",
    )
    show_answer: bool = Field(
        True, description="Show the judge `answer` of the prompt's data, where there is one."
    )
    max_tokens: PositiveInt = Field(512, description="Tokens of a verdict with its reasons.")
    most_characters: PositiveInt = Field(
        16_000, description="Maximum characters of a completion; a longer one is cut in the middle."
    )
    most_requests: PositiveInt = Field(
        8, description="Maximum concurrent requests to the judge per RaaS."
    )
    deadline_s: Seconds = Field(60.0, description="Maximum time for a verdict, attempts included.")
    attempts: PositiveInt = Field(
        2,
        description="Requests for a verdict before the episode fails, where one fails or cannot be read.",
    )
    remembered: PositiveInt = Field(10_000, description="Verdicts kept, by what was judged.")

    @model_validator(mode="after")
    def _one_judge(self) -> JudgeConfig:
        if (self.engine is None) == (self.url is None):
            raise ValueError("name one judge: engine = NAME of [engines.NAME], or url and model")
        if self.url is not None and not self.model:
            raise ValueError("url needs model: the name under which the server serves the judge")
        return self


Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class FormConfig(ConfigModel):
    """``[reward] use = "format"``; each key that is set is a demand."""

    pattern: Annotated[str, AfterValidator(compiled)] | None = Field(
        default=None,
        description="Regular expression in RE2's syntax that the whole text matches; `.` is any character.",
    )
    tags: tuple[Tag, ...] = Field(
        (), description="Tags that enclose text, each once, in this order and not one in another."
    )
    json_keys: tuple[str, ...] | None = Field(
        default=None,
        description="The text, or its last fenced block, is a JSON object with these keys.",
    )
    one_box: bool = Field(False, description="There is exactly one `\\boxed{}`, and it is closed.")
    ended: bool = Field(False, description="The policy ended the text itself.")
    partial: bool = Field(
        False, description="The share of demands that are met, not all or nothing."
    )
    each_policy: bool = Field(
        False,
        description="Judge each policy by its own last completion, not all of them by the last one.",
    )

    @model_validator(mode="after")
    def _demands_something(self) -> FormConfig:
        if not (
            self.pattern or self.tags or self.json_keys is not None or self.one_box or self.ended
        ):
            raise ValueError("demands nothing: set pattern, tags, json_keys, one_box or ended")
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("tags has a tag twice")
        return self


class LengthConfig(ConfigModel):
    """``[reward] use = "length_penalty"``; lengths are sampled tokens."""

    form: Literal["soft_overlong", "linear", "cosine"] = Field(
        "soft_overlong", description="How the penalty grows with the length."
    )
    max_tokens: PositiveInt = Field(
        description="Length from which the penalty is whole; `[sampling] max_tokens`, as a rule."
    )
    cache_tokens: OrNone[PositiveInt] = Field(
        None,
        description="soft_overlong: number of tokens before that over which the penalty grows; 'none': a fifth of them.",
    )
    short: Finite = Field(0.0, description="linear and cosine: reward of length 0.")
    long: Finite = Field(-1.0, description="Reward from max_tokens on.")
    each_policy: bool = Field(
        False, description="Count the tokens of each policy by themselves, not those of all."
    )

    @model_validator(mode="after")
    def _consistent(self) -> LengthConfig:
        if self.form != "soft_overlong" and self.cache_tokens is not None:
            raise ValueError(f"cache_tokens has no meaning with form = {self.form!r}")
        if self.form == "soft_overlong" and (self.short or self.long >= 0):
            raise ValueError(
                "soft_overlong goes from 0 to `long`, which is below 0; leave `short` out"
            )
        if self.cache_tokens is not None and self.cache_tokens > self.max_tokens:
            raise ValueError(
                f"cache_tokens = {self.cache_tokens} is above max_tokens = {self.max_tokens}"
            )
        return self

    @property
    def cache(self) -> int:
        """``cache_tokens``, or its default."""
        return self.cache_tokens or max(1, self.max_tokens // 5)
