"""Both forms against the public implementations, restated from what they do in another shape: per prompt the whole
trace of what its groups were, counted from its end at each offer (as the repository keeps it), the curator's rules
as a function of that trace."""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.types import GroupSummary, Prompt
from astraflow_plugin_greso.config import GresoConfig, GresoRepositoryConfig
from astraflow_plugin_greso.curator import Greso
from astraflow_plugin_greso.repository import GresoRepository
from astraflow_testing.conformance.subject import context

SEED = 11
PROMPTS = 4
CONTEXT = context("dataflow", Path("."), SEED)
REWARDS = {
    "easy": [1.0, 1.0],
    "hard": [0.0, 0.0],
    "mixed": [0.0, 1.0],
    "alone": [1.0],
    "middle": [0.6, 0.6],
    "nearly": [0.99, 0.97],
    "tenth": [0.1, 0.1],
}


def group(prompt, rewards):
    whole = np.ones(len(rewards), dtype=np.int32)
    return GroupSummary(
        "solver", Prompt(prompt), np.array(rewards), whole, whole, whole, whole == 0, 1
    )


class Twin:
    """``kind`` says of rewards what a streak is made of, ``flat`` whether the controller counts them."""

    def __init__(self, kind, floors, targets, bounds, counted=lambda rewards: True):
        self.kind, self.floors, self.targets, self.bounds = kind, floors, targets, bounds
        self.counted = counted
        self.random, self.p = Random(SEED), {"easy": 0.5, "hard": 0.5}
        self.trace, self.window = defaultdict(list), []

    def admits(self, prompt):
        trace = self.trace[prompt][::-1]
        last = trace[0] if trace else None
        z = len(list(takewhile(lambda kind: kind == last, trace))) if last else 0
        chance = max(self.p[last] ** z, self.floors[last]) if z else 1.0
        return chance >= 1 or self.random.random() < chance

    def sees(self, prompt, rewards):
        if not self.counted(rewards):
            return
        self.trace[prompt].append(self.kind(rewards))
        flat = len(set(rewards)) == 1
        self.window.append(self.kind(rewards) if flat else None)

    def looks(self):
        for kind in self.p:
            if self.window:
                often = self.window.count(kind) / len(self.window) >= self.targets[kind]
                moved = self.p[kind] - 0.01 if often else self.p[kind] + 0.01
                self.p[kind] = min(max(moved, self.bounds[0]), self.bounds[1])
        self.window = []


def curator_twin():
    def kind(rewards):
        return (
            None
            if len(set(rewards)) > 1
            else "easy"
            if sum(rewards) / len(rewards) > 0.5
            else "hard"
        )

    floors = {"easy": 0.05, "hard": 0.30}
    return Twin(kind, floors, {"easy": 0.083, "hard": 0.167}, (0.01, 0.99), lambda r: len(r) > 1)


def repository_twin():
    def kind(rewards):
        mean = sum(rewards) / len(rewards)
        return "easy" if mean >= 0.98 else "hard" if mean <= 0.11 else None

    floors = {"easy": 0.01, "hard": 0.01}
    return Twin(kind, floors, {"easy": 0.25 / 3, "hard": 0.25 * 2 / 3}, (0.05, 0.95))


OUTCOMES = st.lists(
    st.lists(st.sampled_from(sorted(REWARDS)), min_size=PROMPTS, max_size=PROMPTS), max_size=30
)


def live(policy, twin, epochs, armed_from):
    """Each epoch offers every prompt, its admitted ones bring their outcomes, a version ends it."""
    policy.on_version("solver", 0)
    for epoch, outcomes in enumerate(epochs):
        for number, outcome in enumerate(outcomes):
            prompt = f"p{number}"
            admitted = policy.admit(Prompt(prompt))
            assert admitted == twin.admits(prompt)
            if admitted:
                policy.accept(group(prompt, REWARDS[outcome]))
                twin.sees(prompt, REWARDS[outcome])
        policy.on_version("solver", epoch + 1)
        if epoch >= armed_from:
            twin.looks()
        twin.window = []
        made = policy.metrics()
        assert abs(made["p_easy"] - twin.p["easy"]) < 1e-12
        assert abs(made["p_hard"] - twin.p["hard"]) < 1e-12


@given(OUTCOMES)
def test_the_curator_decides_as_its_twin(epochs):
    # Armed by one epoch of offers after version 1, which ends the second one here.
    live(Greso(GresoConfig(), CONTEXT), curator_twin(), epochs, armed_from=1)


@given(OUTCOMES)
def test_the_repository_form_decides_as_its_twin(epochs):
    live(GresoRepository(GresoRepositoryConfig(), CONTEXT), repository_twin(), epochs, armed_from=1)
