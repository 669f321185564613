"""What an episode came to: what was captured of each role, with the rewards of the environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from astraflow_contrib_verifiers.worker import RoleOutcome
from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Completion, Trajectory
from astraflow_core.types import Sequence as TokenSequence
from astraflow_gateway.episode import Episode

_CLOSE = 1e-5
"""Log-probs that pass through JSON and float32 differ by less."""


def trajectory(
    played: Mapping[str, Episode], outcomes: Mapping[str, RoleOutcome], check_tokens: bool
) -> Trajectory:
    """``played``: role → what its player sampled. With several roles each sequence has the reward of its role, and a policy
    the mean of its roles'. :class:`EnvironmentFailed` if no trained token was sampled."""
    sequences: list[TokenSequence] = []
    completions: list[Completion] = []
    rewards: dict[str, list[float]] = {}
    if unknown := sorted(set(outcomes) - set(played)):
        raise EnvironmentFailed(
            "reply", f"{', '.join(unknown)} is not among the roles {', '.join(played)}"
        )
    for role, episode in played.items():
        if (outcome := outcomes.get(role)) is None:  # it did not take part
            continue
        if check_tokens:
            compare(role, episode, outcome)
        if not outcome.trained:
            continue
        own = episode.sequences()
        reward = outcome.reward
        if reward is not None and len(played) > 1:
            own = [replace(sequence, reward=reward) for sequence in own]
        for policy in dict.fromkeys(sequence.policy for sequence in own):
            if reward is not None:
                rewards.setdefault(policy, []).append(reward)
        sequences += own
        completions += episode.completions
    if not sequences:
        raise EnvironmentFailed("nothing_sampled", _nothing(played))
    means = {policy: sum(each) / len(each) for policy, each in rewards.items()}
    return Trajectory(tuple(sequences), tuple(completions), means, metrics(played, outcomes))


def metrics(played: Mapping[str, Episode], outcomes: Mapping[str, RoleOutcome]) -> dict[str, float]:
    """Those of the gateway over all roles, and those of the environment; with several roles as ``role.name``."""
    sums: Counter[str] = Counter()
    for episode in played.values():
        sums.update(episode.metrics())
    found = {name: float(value) for name, value in sums.items()}
    for role, outcome in outcomes.items():
        prefix = f"{role}." if len(played) > 1 else ""
        for name, value in outcome.metrics.items():
            if value is not None:
                found.setdefault(f"{prefix}{name}", value)
    return found


def compare(role: str, episode: Episode, outcome: RoleOutcome) -> None:
    """:class:`EnvironmentFailed` unless verifiers has recorded exactly what was sampled for ``role``, if it records any."""
    if outcome.recorded is None:
        return
    there = sorted((list(tokens), list(logprobs)) for tokens, logprobs in outcome.recorded)
    results = [call.result for call in episode.graph.calls]
    here = sorted((each.tokens.tolist(), each.logprobs.tolist()) for each in results)
    if [tokens for tokens, _ in there] != [tokens for tokens, _ in here]:
        raise EnvironmentFailed(
            "tokens",
            f"verifiers recorded {len(there)} turns of role {role!r} and {len(here)} were sampled, or their token ids differ "
            "([workflow] check_tokens)",
        )
    for (_, one), (_, other) in zip(there, here, strict=True):
        if len(one) != len(other) or not np.allclose(one, other, atol=_CLOSE):
            raise EnvironmentFailed(
                "tokens", f"verifiers recorded other log-probs of role {role!r} than were sampled"
            )


def _nothing(played: Mapping[str, Episode]) -> str:
    refused = [episode.refusal for episode in played.values() if episode.refusal]
    told = f"; the gateway refused: {refused[-1]}" if refused else ""
    return f"the environment sampled nothing that is trained, as {', '.join(played)}{told}"
