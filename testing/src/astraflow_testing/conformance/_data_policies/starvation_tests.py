"""Tests of starvation in the data policy suite: prompts, groups and rows must be used eventually."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest

from astraflow_core.protocols.data_policy import Accept, Arrange, Draw
from astraflow_core.types import Prompt
from astraflow_testing.conformance._data_policies import data_world as worlds
from astraflow_testing.conformance._data_policies.data_world import COUNT, GROUP, DataWorld
from astraflow_testing.conformance.subject import Subject, violated

MOST_OFFERS = 64
"""Offers in a row of which at least one is taken."""


def violated_by(did: str, demands: str) -> NoReturn:
    """Fail, with what a policy ``did`` and what its protocol ``demands``."""
    violated("protocols/data_policy", did, demands)


def opened(component: Subject, flag: str) -> None:
    """Continue only if the capability is declared; another test checks that it is implemented."""
    if flag not in component.capabilities:
        pytest.skip(f"does not declare {flag!r}")


class StarvationTests:
    """Inherited by ``DataPolicyConformance``, which defines the fixtures."""

    def test_unseen_prompts_are_admitted(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """It admits some unseen prompts; otherwise no run could begin."""
        opened(component, "admit")
        for name, policy in build():
            unseen = (Prompt(f"{p.id}-{n}", p.data) for n in range(MOST_OFFERS) for p in prompts)
            offers = [
                policy.admit(prompt) for prompt, _ in zip(unseen, range(MOST_OFFERS), strict=False)
            ]
            if not any(offers):
                violated_by(
                    f"{name} admitted none of {MOST_OFFERS} prompts that it had never seen",
                    "that a run can begin",
                )

    def test_prompts_of_mixed_success_keep_being_admitted(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """While groups still differ sometimes, some prompts are admitted in every series of offers."""
        opened(component, "admit")
        for name, policy in build():
            made = DataWorld(prompts).advance(policy, 10 * MOST_OFFERS)
            offers = [answer for kind, answer in made if kind == "admit"]
            for start in range(0, len(offers), MOST_OFFERS):
                if not any(offers[start : start + MOST_OFFERS]):
                    violated_by(
                        f"{name} admitted none of the offers {start} to {start + MOST_OFFERS}",
                        "that no prompt starves while it still has a learning signal",
                    )

    def test_groups_may_finish_late_out_of_order_or_never(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """Many groups are in progress at once, in any order; a failed task returns none."""
        opened(component, "admit")
        for name, policy in build():
            rng = np.random.default_rng(2)
            world, under_way = DataWorld(prompts), list[Prompt]()
            for stretch in range(10):
                offers = []
                for _ in range(MOST_OFFERS):
                    prompt = prompts[world.step % len(prompts)]
                    offers.append(policy.admit(prompt))
                    under_way += [prompt] * bool(offers[-1])
                    if len(under_way) > 2 * GROUP:
                        ended = under_way.pop(int(rng.integers(len(under_way))))
                        if isinstance(policy, Accept) and rng.random() < 0.75:
                            policy.accept(world.group(ended))
                    world.step += 1
                if not any(offers):
                    violated_by(
                        f"{name} admitted none of the offers {stretch * MOST_OFFERS} to "
                        f"{(stretch + 1) * MOST_OFFERS} while groups came back late or not at all",
                        "that nothing waits for a group that may never come",
                    )

    def test_groups_that_differ_keep_being_accepted(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """A steady stream of fresh groups with different rewards feeds the trainer."""
        opened(component, "accept")
        for name, policy in build():
            rng = np.random.default_rng(1)
            for stretch in range(4):
                taken = 0
                for n in range(MOST_OFFERS):
                    rewards = rng.permutation([0.0, 1.0, *rng.integers(0, 2, 6)])
                    group = worlds.summary(prompts[n % len(prompts)], rewards, stretch * 4)
                    taken += policy.accept(group).accepted
                if not taken:
                    violated_by(
                        f"{name} accepted none of the groups {stretch * MOST_OFFERS} to "
                        f"{(stretch + 1) * MOST_OFFERS}, whose rewards differ",
                        "that the trainer gets rows",
                    )

    def test_fresh_rows_are_used_up(self, component: Subject, build: Any) -> None:
        """With enough rows there is a batch, also at the start, and fresh rows are used."""
        if not component.capabilities & {"arrange", "draw"}:
            pytest.skip("declares neither 'arrange' nor 'draw'")
        for name, policy in build():
            total = 12 * COUNT
            world = DataWorld([], fresh=[(0.0, row) for row in worlds.rows_of(total)])
            for _ in range(MOST_OFFERS):
                fresh = [row for _, row in world.fresh]
                if len(fresh) < COUNT:
                    break
                if isinstance(policy, Arrange):
                    fresh = policy.arrange(fresh, 3)
                rows: Any = fresh[:COUNT]
                if isinstance(policy, Draw):
                    rows = policy.draw(COUNT, fresh, list(world.kept), 3)
                world.served(rows or [])
            else:
                violated_by(
                    f"{name}: after {MOST_OFFERS} batches of {COUNT} rows {len(world.fresh)} of {total} "
                    "fresh rows still wait",
                    "batches while there are rows, and that no fresh row waits for ever",
                )
