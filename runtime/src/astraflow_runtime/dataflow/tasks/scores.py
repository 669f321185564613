"""Scores of an evaluation: avg@k, pass@k and mean reward, per set and policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from astraflow_wire.groups import GroupHeader


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the probability that one of ``k`` samples is correct, from ``correct``
    of ``samples``: ``1 - C(n-c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374), ``k ≤
    samples``.
    """
    if not 0 < k <= samples:
        raise ValueError(f"pass@k needs 0 < k <= samples, got k={k} of {samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


@dataclass(frozen=True, slots=True)
class PromptScore:
    """One prompt, one policy: rewards of the trajectories produced, and how many were correct of
    the ``samples`` asked for (a trajectory that the workflow rejected is not correct)."""

    samples: int
    correct: int
    rewards: tuple[float, ...]


def score_prompt(
    header: GroupHeader, samples: int, pass_threshold: float
) -> dict[str, PromptScore]:
    """Policy → score. The reward of a trajectory for a policy is the mean over its sequences of it."""
    rewards: dict[str, dict[int, list[float]]] = {}
    for sequence in header.sequences:
        own = rewards.setdefault(sequence.policy, {})
        own.setdefault(sequence.trajectory, []).append(sequence.reward)
    scores = {}
    for policy, trajectories in rewards.items():
        means = tuple(sum(values) / len(values) for values in trajectories.values())
        count = max(samples, len(means))
        scores[policy] = PromptScore(count, sum(mean >= pass_threshold for mean in means), means)
    return scores


def score_together(
    episodes: Sequence[dict[str, PromptScore]],
) -> dict[str, PromptScore]:
    """The score of one prompt whose episodes were scored separately; a policy without a trajectory
    in an episode did not solve it there.
    """
    together = {}
    for policy in dict.fromkeys(policy for scores in episodes for policy in scores):
        own = [scores[policy] for scores in episodes if policy in scores]
        rewards = tuple(reward for score in own for reward in score.rewards)
        count = max(len(episodes), len(rewards))
        together[policy] = PromptScore(count, sum(score.correct for score in own), rewards)
    return together


@dataclass(slots=True)
class SetScore:
    """Running scores of one set; ``failed`` prompts gave no result and are not in ``n``."""

    k: int
    prompts: dict[str, list[PromptScore]] = field(default_factory=dict)
    n: int = 0
    failed: int = 0
    last_error: str = ""

    def add(self, scores: dict[str, PromptScore], policies: Sequence[str]) -> None:
        """Add a prompt; one without any trajectory counts as unsolved for all ``policies``."""
        self.n += 1
        for policy, score in scores.items() or [
            (name, PromptScore(self.k, 0, ())) for name in policies
        ]:
            self.prompts.setdefault(policy, []).append(score)

    def add_failure(self, error: str) -> None:
        """Add a prompt that could not be rolled out."""
        self.failed += 1
        self.last_error = error

    def result(self) -> dict[str, object]:
        """``avg`` (avg@k), ``pass`` (pass@k), ``mean_reward``, means over policies of the figures
        in ``policies``; ``None`` where there are no results.
        """
        each = {policy: self._means(scores) for policy, scores in self.prompts.items()}
        result: dict[str, object] = {"n": self.n, "k": self.k, "failed": self.failed}
        for key in ("avg", "pass", "mean_reward"):
            values = [figures[key] for figures in each.values() if figures[key] is not None]
            result[key] = sum(v for v in values if v is not None) / len(values) if values else None
        if len(each) > 1:
            result["policies"] = each
        if self.last_error:
            result["last_error"] = self.last_error
        return result

    def _means(self, scores: list[PromptScore]) -> dict[str, float | None]:
        rewards = [reward for score in scores for reward in score.rewards]
        return {
            "avg": math.fsum(score.correct / score.samples for score in scores) / len(scores),
            "pass": math.fsum(
                pass_at_k(s.samples, s.correct, min(self.k, s.samples)) for s in scores
            )
            / len(scores),
            "mean_reward": math.fsum(rewards) / len(rewards) if rewards else None,
        }
