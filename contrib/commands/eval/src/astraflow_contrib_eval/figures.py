"""The figures of an evaluation, and of two compared, as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow_contrib_eval.evaluation import Evaluated, PromptEpisodes, SetEpisodes
from astraflow_contrib_eval.intervals import CONFIDENCE, Estimate, difference, proportion, ratio
from astraflow_runtime.dataflow.tasks.evaluation_tasks import evaluation_sampling
from astraflow_runtime.dataflow.tasks.scores import PromptScore, pass_at_k

SCHEMA = 1
"""Raised when a key changes its meaning or goes."""


def document(evaluated: Evaluated) -> dict[str, Any]:
    """What ``--json`` writes; docs/evaluate.md describes it."""
    subject, config = evaluated.subject, evaluated.subject.config
    sampling = evaluation_sampling(config)
    sets = evaluated.sets
    return {
        "schema": SCHEMA,
        "model": subject.label,
        "run": None if subject.run is None else str(subject.run),
        "policies": {
            name: {
                "model": subject.models[name],
                "version": subject.versions[name],
                "engine": policy.engine.use,
            }
            for name, policy in config.policies.items()
        },
        "workflow": None if config.workflow is None else config.workflow.use,
        "reward": None if config.reward is None else config.reward.use,
        "samples": config.eval.samples,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "pass_threshold": config.eval.pass_threshold,
        "confidence": CONFIDENCE,
        "partial": evaluated.partial,
        "error": evaluated.error or None,
        "seconds": round(evaluated.seconds, 3),
        "sets": {name: _of_set(episodes, list(config.policies)) for name, episodes in sets.items()},
    }


def _of_set(episodes: SetEpisodes, policies: list[str]) -> dict[str, Any]:
    ended = episodes.ended
    figures = episodes.score(policies).result()
    figures.pop("last_error", None)
    figures["policies"] = {
        policy: found
        for policy in policies
        if (found := _of_policy(scores_of(ended, policy), episodes.samples)) is not None
    }
    figures["episodes"] = {
        "planned": episodes.planned,
        "played": episodes.played,
        "failed": episodes.failed,
        "rejected": episodes.rejected,
        "cut_off": episodes.cut_off,
        "tokens": episodes.tokens,
        "last_error": episodes.last_error or None,
    }
    figures["prompts"] = [_of_prompt(prompt, policies) for prompt in ended]
    return figures


def scores_of(prompts: Sequence[PromptEpisodes], policy: str) -> list[PromptScore]:
    """The scores of a policy for each prompt that it took part in, or that all episodes were rejected of."""
    found = []
    for prompt in prompts:
        together = prompt.together
        if policy in together:
            found.append(together[policy])
        elif not together:
            found.append(PromptScore(len(prompt.scores), 0, ()))
    return found


def _of_policy(scores: Sequence[PromptScore], samples: int) -> dict[str, Any] | None:
    if not scores:
        return None
    played = sum(score.samples for score in scores)
    average = proportion([score.correct / score.samples for score in scores], played)
    passed = {str(k): _pass(scores, k, played) for k in powers(samples)}
    rewarded = [score for score in scores if score.rewards]
    mean = None
    if rewarded:
        sums = [math.fsum(score.rewards) for score in rewarded]
        mean = ratio(sums, [len(score.rewards) for score in rewarded])
    return {
        "avg": average.as_json(),
        "pass": {k: estimate.as_json() for k, estimate in passed.items()},
        "mean_reward": None if mean is None else mean.as_json(),
    }


def _pass(scores: Sequence[PromptScore], k: int, played: int) -> Estimate:
    values = [pass_at_k(s.samples, s.correct, min(k, s.samples)) for s in scores]
    return proportion(values, played)


def powers(samples: int) -> list[int]:
    """The ``k`` of pass@k that are shown: 1, 2, 4 … and ``samples``."""
    return sorted({samples, *(2**power for power in range(samples.bit_length()))})


def _of_prompt(prompt: PromptEpisodes, policies: Sequence[str]) -> dict[str, Any]:
    together = prompt.together
    return {
        "id": prompt.prompt_id,
        "samples": len(prompt.scores),
        "failed": prompt.failed,
        "policies": {
            policy: {
                "correct": score.correct,
                "mean_reward": math.fsum(score.rewards) / len(score.rewards),
            }
            for policy in policies
            if (score := together.get(policy)) is not None and score.rewards
        },
    }


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The differences of the first document less the second, over the prompts that both have a result of."""
    found: dict[str, Any] = {}
    for name, figures in one["sets"].items():
        theirs = other["sets"].get(name)
        if theirs is None:
            continue
        by_id = {prompt["id"]: prompt for prompt in theirs["prompts"]}
        pairs = [(each, by_id[each["id"]]) for each in figures["prompts"] if each["id"] in by_id]
        found[name] = {
            "prompts": len(pairs),
            "policies": {
                policy: {"avg": _difference(pairs, policy)}
                for policy in figures["policies"]
                if policy in theirs["policies"] and pairs
            },
        }
    settings = ("samples", "temperature", "max_tokens", "pass_threshold", "workflow", "reward")
    unlike = {key: [one[key], other[key]] for key in settings if one[key] != other[key]}
    return {"model": other["model"], "unlike": unlike, "sets": found}


def _difference(pairs: Sequence[tuple[Any, Any]], policy: str) -> dict[str, float | None]:
    def solved(prompt: Mapping[str, Any]) -> float:
        correct, samples = prompt["policies"].get(policy, {}).get("correct", 0), prompt["samples"]
        return float(correct / samples)

    fewest = min(prompt["samples"] for pair in pairs for prompt in pair)
    return difference([(solved(mine), solved(theirs)) for mine, theirs in pairs], fewest).as_json()
