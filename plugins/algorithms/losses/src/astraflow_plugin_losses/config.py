"""The keys that policy losses have in common."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone

NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
DualClip = OrNone[Annotated[float, Field(gt=1)]]
Knot = tuple[NotNegative, float]


def _increasing(knots: tuple[Knot, ...]) -> tuple[Knot, ...]:
    steps = [step for step, _ in knots]
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise ValueError(f"steps must increase, got {steps}")
    return knots


Schedule = Annotated[tuple[Knot, ...], Field(min_length=1), AfterValidator(_increasing)]
Aggregation = Literal[
    "token_mean",
    "prompt_mean",
    "seq_mean_token_mean",
    "seq_mean_token_mean_all_rows",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "const_norm_all_rows",
]
GroupUnit = Literal["sequence", "trajectory", "token"]
Outcome = Literal["rest", "whole"]
Compares = Literal["", "sequences", "trajectories"]
RatioLevel = Literal["token", "sequence", "geometric"]
KlEstimator = Literal["k1", "k2", "k3", "k1_plus", "k3_plus"]
NEEDS_MAX_TOKENS = ("seq_mean_token_sum_norm", "const_norm_all_rows")


class Correction(ConfigModel):
    """One correction of the mismatch between the policy that sampled and the proximal one."""

    mode: Literal["truncate", "mask", "reject"] = Field(
        description="With w = proximal / behaviour: 'truncate' weighs by w held within low and high; 'mask' by w where "
        "low ≤ w ≤ high, else 0 (IcePop); 'reject' by 1 where low ≤ w ≤ high, else 0."
    )
    level: Literal["token", "sequence", "geometric", "max"] = Field(
        "token",
        description="w of each token, their product over the row, or its geometric mean. Of an estimator of the KL: of "
        "each token, the row's sum, its mean, or its largest.",
    )
    low: NotNegative = Field(0.0, description="Smallest w that is kept, or what w is raised to.")
    high: Positive = Field(2.0, description="Largest w that is kept, or what w is truncated to.")
    estimator: Literal["ratio", "k2", "k3"] = Field(
        "ratio",
        description="With 'reject': what low and high bound, w or an estimator of the KL of the two policies, "
        "k2 = (log w)² / 2 or k3 = w - 1 - log w, with log w within ±20; only high bounds these.",
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} is above high = {self.high}")
        return self

    @model_validator(mode="after")
    def _estimators_reject(self) -> Self:
        if self.estimator == "ratio":
            if self.level == "max":
                raise ValueError("level = 'max' needs estimator = 'k2' or 'k3'")
        elif self.mode != "reject" or self.low:
            raise ValueError(
                f"estimator = {self.estimator!r} needs mode = 'reject', and high alone bounds it"
            )
        return self


class PolicyConfig(ConfigModel):
    """Keys of every policy loss."""

    aggregation: Aggregation = Field(
        "token_mean",
        description="token_mean: over all trained tokens of the mini-batch; prompt_mean: per prompt, then "
        "over prompts; seq_mean_…: per row (mean, sum, or sum / max_tokens), then over rows that train a "
        "token, or over all_rows; const_norm_all_rows: sum / (rows × max_tokens).",
    )
    max_tokens: OrNone[PositiveInt] = Field(
        None, description="The constant length of the aggregations that divide by one."
    )
    log_ratio_clamp: OrNone[Positive] = Field(
        None,
        description="Log-ratios are clamped to ± this before exp; verl: 20. 'none': not at all.",
    )
    kl_coef: NotNegative = Field(
        0.0, description="Weight of the KL to the reference model; 0 loads no such model."
    )
    kl_estimator: KlEstimator = Field(
        "k3", description="Schulman's estimators; …_plus: that value with the gradient of k2."
    )
    kl_clamp: Literal["none", "verl", "areal"] = Field(
        "none",
        description="verl: k3 of a gap within ±20, clamped to ±10; areal: any estimator clamped to ±10.",
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        description="Where the KL is applied: as a term of the loss, or in the reward of each token (as "
        "return to go).",
    )
    entropy_coef: float | Schedule = Field(
        0.0,
        description="Weight of the entropy bonus: a number, or [[update, value], …] joined by lines and "
        "constant outside, as [[40, 0.1], [80, 0.0]].",
    )
    proximal: Literal["behaviour", "recompute", "loglinear"] = Field(
        "behaviour",
        description="The policy that ratios are taken to: the one that sampled; the one at the start of the "
        "update, computed again; or between behaviour and current, by the token's version.",
    )
    corrections: tuple[Correction, ...] = Field(
        (),
        description="Off-policy corrections, multiplied: [{ mode = 'truncate', high = 2.0 }, …].",
    )
    off_policy_delta: OrNone[NotNegative] = Field(
        None,
        description="Rows with A < 0 whose mean log(behaviour / current) is above this, 0 for instance, are masked. "
        "'none': no row.",
    )

    @property
    def compares(self) -> Compares:
        """Nothing: a group of one teaches as well. See :class:`astraflow_core.protocols.algorithm.Algorithm`."""
        return ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.aggregation in NEEDS_MAX_TOKENS and self.max_tokens is None:
            raise ValueError(f"aggregation = {self.aggregation!r} needs max_tokens")
        if self.corrections and self.proximal == "behaviour":
            raise ValueError(
                "corrections weigh the proximal policy against the behaviour policy: set "
                "proximal = 'recompute' (or 'loglinear')"
            )
        return self


class ClipConfig(PolicyConfig):
    """Keys of losses with a clipped ratio."""

    clip_low: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: NotNegative = Field(
        0.2,
        description="The ratio is clipped above at 1 + clip_high; 0.28 is 'clip-higher' (DAPO).",
    )
    dual_clip: DualClip = Field(
        None,
        description="Bounds the loss at -A · dual_clip where A < 0; verl: 3. 'none': no bound.",
    )


class WhitenConfig(PolicyConfig):
    """Keys of losses that normalise advantages over the whole batch."""

    whiten_eps: Positive = Field(
        1e-8,
        description="Epsilon of `whiten`, added to the standard deviation (n - 1) of the batch: 1e-8 as "
        "verl, 1e-5 AReaL, 1e-4 TRL.",
    )
    whiten_eps_inside: bool = Field(
        True,
        description="Add whiten_eps to the variance, as verl; false: to the standard deviation, as AReaL and TRL.",
    )


class RatioLevelConfig(PolicyConfig):
    """Keys of losses whose ratio may be that of a whole row."""

    ratio_level: RatioLevel = Field(
        "token",
        description="The ratio of each token, their product over the row ('sequence'), or its geometric mean. The log of "
        "each is within log_ratio_clamp.",
    )


class TurnRewardConfig(PolicyConfig):
    """Keys of losses to which it matters when a reward was earned."""

    outcome: Outcome = Field(
        "rest",
        description="Reward at the end of a sequence whose turns have rewards: the rest, if the sequence's "
        "reward includes those of its turns (as with the workflow `environment`), or the whole, "
        "in addition to them.",
    )


class GroupConfig(WhitenConfig):
    """Keys of losses with advantages relative to the group."""

    normalize_std: bool = Field(
        True,
        description="Divide advantages by the group's standard deviation (false: as Dr. GRPO).",
    )
    std_eps: Positive = Field(
        1e-4, description="Added to the standard deviation: 1e-4 as TRL, 1e-6 as verl, 1e-5 AReaL."
    )
    std_eps_inside: bool = Field(False, description="Add std_eps to the variance instead.")
    std_of: Literal["group", "batch"] = Field(
        "group",
        description="The standard deviation is that of the group, or of the rewards of all rows of the batch (TRL: "
        "scale_rewards = 'batch').",
    )
    bessel: bool = Field(True, description="Standard deviation with n - 1 (false: n).")
    leave_one_out: bool = Field(
        False, description="The baseline of a row is the mean of the others of its group."
    )
    group_unit: GroupUnit = Field(
        "sequence",
        description="Unit that counts once in the mean and standard deviation of a group: each sequence; "
        "each trajectory, with what it earned (Units.trajectory_reward: step rewards add up, as "
        "in Claw-R1), so that its sequences all have one advantage; each trained token, a mean "
        "weighted by length (OPO).",
    )
    singleton_advantage: Literal["zero", "reward"] = Field(
        "zero", description="Advantage of a group of one: 0 (AReaL), or its reward (verl)."
    )
    whiten: Literal["none", "row", "token"] = Field(
        "none",
        description="Then normalise over the whole batch, each row or each trained token counting once.",
    )

    @property
    def compares(self) -> Compares:
        """What is compared within a group; nothing if a group of one keeps its reward."""
        if self.singleton_advantage == "reward":
            return ""
        return "trajectories" if self.group_unit == "trajectory" else "sequences"

    @model_validator(mode="after")
    def _others_are_countable(self) -> Self:
        if self.leave_one_out and self.group_unit == "token":
            raise ValueError(
                "leave_one_out needs group_unit = 'sequence' or 'trajectory': the spread of tokens around "
                "the mean of the others is not stamped"
            )
        return self

    @model_validator(mode="after")
    def _batch_is_of_rows(self) -> Self:
        if self.std_of == "batch" and not (self.normalize_std and self.group_unit == "sequence"):
            raise ValueError(
                "std_of = 'batch' divides by the standard deviation of the rewards of rows: it needs "
                "normalize_std = true and group_unit = 'sequence'"
            )
        return self


class ClippedGroupConfig(ClipConfig, GroupConfig):
    """Keys of losses with both."""
