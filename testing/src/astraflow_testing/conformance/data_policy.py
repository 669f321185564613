"""Conformance of a data policy: its decisions are typed, reproducible and restorable, and nothing starves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.protocols.data_policy import (
    Accept,
    Admit,
    Arrange,
    Borrow,
    Draw,
    Hold,
    Key,
    Metrics,
    Scale,
    Stateful,
)
from astraflow_core.types import GroupSummary, Prompt, Verdict
from astraflow_testing.conformance._checks import assert_whole
from astraflow_testing.conformance._data_policies import data_world as worlds
from astraflow_testing.conformance._data_policies.data_world import COUNT, DataWorld
from astraflow_testing.conformance._data_policies.starvation_tests import StarvationTests
from astraflow_testing.conformance._data_policies.starvation_tests import opened as _opened
from astraflow_testing.conformance._data_policies.starvation_tests import violated_by as _violated
from astraflow_testing.conformance.subject import Conformance, Subject, context

POINTS: dict[str, Any] = {
    "admit": Admit, "accept": Accept, "key": Key, "arrange": Arrange, "draw": Draw, "hold": Hold,
    "borrow": Borrow, "scale": Scale,
}  # fmt: skip
STEPS = 120
SEEDS = range(1, 9)
LONGEST_REASON = 80
MOST_REASONS = 8


class DataPolicyConformance(Conformance, StarvationTests):
    """Requirements of every data policy, in a small dataflow that offers prompts, finishes groups and takes batches.

    Required fixture ``component``: the policy under test, in the configurations worth testing::

        class TestMine(DataPolicyConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("data_policy", "mine", {}, {"tolerance": 0.1})

    A policy that reads ``prompt.data`` also overrides the fixture ``prompts``.
    """

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the policy, its configurations and its capabilities."""
        pytest.fail(
            "define the fixture `component`: return installed('data_policy', NAME, keys, more_keys …) "
            "or a Subject of your own"
        )

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        """A small set of prompts, offered in turn."""
        return [
            Prompt(f"prompt-{n}", {"prompt": f"What is {n} + {n}?", "answer": str(2 * n)})
            for n in range(12)
        ]

    @pytest.fixture
    def build(self, component: Subject, tmp_path: Path) -> Any:
        """``build(seed=0)``: (label, fresh instance) of each configuration."""

        def made(seed: int = 0) -> Iterator[tuple[str, Any]]:
            for name, factory in component.variants.items():
                yield name, factory(context("dataflow", tmp_path, seed))

        return made

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Known capabilities, and prompts to offer."""
        assert_whole("data_policy", request, ("prompts",))

    # --- what it is ----------------------------------------------------------------------------

    def test_capabilities_match_the_methods(self, component: Subject, build: Any) -> None:
        """Its capabilities name the methods that it implements, and whether it has state."""
        declared = component.capabilities
        for name, policy in build():
            done = {flag for flag, protocol in POINTS.items() if isinstance(policy, protocol)}
            if not done:
                _violated(f"{name} decides nothing", f"any of {', '.join(POINTS)}")
            if isinstance(policy, Stateful):
                done.add("stateful")
            elif hasattr(policy, "state_dict") or hasattr(policy, "load_state_dict"):
                _violated(f"{name} has half a state", "state_dict and load_state_dict")
            for flag in sorted(declared ^ (done | (declared & {"random"}))):
                has = "declares" if flag in declared else "does not declare"
                does = "implements" if flag in done else "does not implement"
                _violated(f"{name} {has} {flag!r} and {does} it", "flags of what it does")

    # --- types ---------------------------------------------------------------------------------

    def test_admit_answers_yes_or_no(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``admit`` returns a bool."""
        _opened(component, "admit")
        for name, policy in build():
            for kind, answer in DataWorld(prompts).advance(policy, STEPS):
                if kind == "admit" and not isinstance(answer, bool):
                    _violated(f"{name}: admit returned {answer!r}", "a bool")

    def test_refused_prompts_have_countable_reasons(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``why_refused``, if it exists, returns few short phrases."""
        _opened(component, "admit")
        for name, policy in build():
            made = DataWorld(prompts).advance(policy, 4 * STEPS)
            reasons: set[object] = {answer for kind, answer in made if kind == "why_refused"}
            for reason in reasons:
                if not (isinstance(reason, str) and 0 < len(reason.strip()) <= LONGEST_REASON):
                    _violated(f"{name}: refused for {reason!r}", "the reason, a short phrase")
            if len(reasons) > MOST_REASONS:
                _violated(
                    f"{name} refused prompts for {len(reasons)} reasons",
                    "a phrase that can be counted: no numbers or ids in it",
                )

    def test_accept_gives_verdicts(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``accept`` returns a Verdict for any group; reasons are few short phrases."""
        _opened(component, "accept")
        for name, policy in build():
            answers = [a for k, a in DataWorld(prompts).advance(policy, STEPS) if k == "accept"]
            for rewards in ([0.5], [1e9, -1e9], [-0.0, 0.0], [1e-300, 0.0], list(range(64))):
                for cut in (False, True):
                    group = worlds.summary(prompts[0], rewards, 1000, truncated=cut)
                    untrained = replace(group, trained=np.zeros_like(group.trained))
                    answers += [policy.accept(group), policy.accept(untrained)]
            reasons = set()
            for answer in answers:
                if not isinstance(answer, Verdict) or not isinstance(answer.accepted, bool):
                    _violated(f"{name}: accept returned {answer!r}", "a Verdict with a bool")
                if not answer.accepted:
                    reason: object = answer.reason
                    if not (isinstance(reason, str) and 0 < len(reason.strip()) <= LONGEST_REASON):
                        _violated(f"{name}: refused for {reason!r}", "the reason, a short phrase")
                    reasons.add(answer.reason)
            if len(reasons) > MOST_REASONS:
                _violated(
                    f"{name} gave {len(reasons)} reasons, such as {sorted(reasons)[:3]}",
                    "a phrase that can be counted: no numbers or ids in it",
                )

    def test_key_gives_finite_numbers(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``key`` returns a float that can be compared."""
        _opened(component, "key")
        for name, policy in build():
            for kind, answer in DataWorld(prompts).advance(policy, STEPS):
                if kind == "key" and not (isinstance(answer, float) and math.isfinite(answer)):
                    _violated(f"{name}: key returned {answer!r}", "a finite float")

    def test_draw_gives_rows_on_offer(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``draw`` returns exactly as many different rows as asked for, of those offered, or None."""
        _opened(component, "draw")
        for name, policy in build():
            DataWorld(prompts).advance(policy, STEPS)
            rows = [replace(row, arrival=row.arrival + 1000) for row in worlds.rows_of(24)]
            served = [replace(row, times_served=1) for row in rows]
            for split in range(0, 24, 3):
                for count in (1, COUNT, 12, 25):
                    fresh, kept = rows[split:], served[:split]
                    drawn = policy.draw(count, fresh, kept, 1000)
                    if drawn is None:
                        continue
                    got = [row.arrival for row in drawn]
                    offered = {row.arrival for row in (*fresh, *kept)}
                    if len(got) != count or len({*got}) != count or not offered.issuperset(got):
                        _violated(
                            f"{name}: of {len(fresh)} fresh and {len(kept)} kept rows it drew {got} "
                            f"when asked for {count}",
                            "as many different rows as asked for, of those offered, or None",
                        )

    def test_arrange_gives_rows_on_offer(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``arrange`` returns rows of those offered, each once, however few there are."""
        _opened(component, "arrange")
        for name, policy in build():
            DataWorld(prompts).advance(policy, STEPS)
            for size in (0, 1, 2, COUNT, 24):
                rows = [replace(row, arrival=row.arrival + 1000) for row in worlds.rows_of(size)]
                got = [row.arrival for row in policy.arrange(rows, 1000)]
                if len({*got}) != len(got) or not {row.arrival for row in rows}.issuperset(got):
                    _violated(
                        f"{name}: of {size} rows it made {got}",
                        "rows of those offered, each once",
                    )

    def test_borrow_takes_shared_rows(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``borrow`` returns different rows of those lent, at most as many as ``most`` says, which is no more
        than the batch has; it names its source and bounds their age."""
        _opened(component, "borrow")
        for name, policy in build():
            DataWorld(prompts).advance(policy, STEPS)
            if not policy.source or policy.max_age < 0:
                _violated(
                    f"{name}: it borrows rows of {policy.source!r} that are {policy.max_age} versions old",
                    "another policy of the run, and an age from 0",
                )
            for count in (1, 2, COUNT, 25):
                most = policy.most(count)
                if not 0 <= most <= count:
                    _violated(f"{name}: of {count} rows it would borrow {most}", "all at most")
                for size in (0, 1, COUNT, 24):
                    rows = worlds.rows_of(size)
                    got = [row.arrival for row in policy.borrow(count, rows, 1000)]
                    offered = {row.arrival for row in rows}
                    if len({*got}) != len(got) or len(got) > most or not offered.issuperset(got):
                        _violated(
                            f"{name}: of {size} shared rows it borrowed {got} for a batch of {count}",
                            f"at most {most} of the shared rows, each once",
                        )

    def test_hold_has_no_side_effects(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """``hold`` returns a bool, and another call changes nothing."""
        _opened(component, "hold")
        for (name, asked), (_, other) in zip(build(), build(), strict=True):
            here, there = DataWorld(prompts), DataWorld(prompts)
            for _ in range(STEPS):
                for answer in (asked.hold(), asked.hold()):
                    if not isinstance(answer, bool):
                        _violated(f"{name}: hold returned {answer!r}", "a bool")
                left, right = here.advance(asked, 1), there.advance(other, 1)
                if left != right or asked.hold() is not other.hold():
                    _violated(
                        f"{name}: a call of hold changed later decisions",
                        "that it has no side effects",
                    )

    def test_metrics_are_plain_numbers(
        self, build: Any, component: Subject, prompts: list[Prompt]
    ) -> None:
        """Finite floats under names without a prefix, from the start."""
        for name, policy in build():
            if isinstance(policy, Metrics):
                for steps in (0, STEPS):
                    DataWorld(prompts).advance(policy, steps)
                    for key, value in policy.metrics().items():
                        number: object = value
                        if not (isinstance(number, int | float) and math.isfinite(number)):
                            _violated(f"{name}: metric {key!r} is {value!r}", "a finite float")
                        if not key or "/" in key:
                            _violated(
                                f"{name}: a metric is called {key!r}", "a name without prefix"
                            )

    # --- chance and memory ---------------------------------------------------------------------

    def test_the_same_seed_makes_the_same_choices(self, build: Any, prompts: list[Prompt]) -> None:
        """Two instances of one seed agree, each in its own copy of the world, step by step in turn;
        asking one for its metrics and its state changes nothing."""
        for (name, one), (_, other) in zip(build(), build(), strict=True):
            here, there = DataWorld(prompts), DataWorld(prompts)
            left, right = [], []
            for _ in range(STEPS):
                left += here.advance(one, 1)
                right += there.advance(other, 1)
                if isinstance(other, Metrics):
                    other.metrics()
                if isinstance(other, Stateful):
                    other.state_dict()
            if difference := worlds.first_difference(left, right):
                _violated(
                    f"{name}: two instances of one seed differ at {difference}",
                    "choices that depend only on context.seed and on its inputs",
                )

    def test_other_seeds_make_other_choices_if_it_is_random(
        self, component: Subject, build: Any, prompts: list[Prompt]
    ) -> None:
        """The capability ``random`` is declared if the seed has an influence."""
        random = "random" in component.capabilities
        varies = dict.fromkeys(component.variants, False)
        histories = {name: DataWorld(prompts).advance(p, STEPS) for name, p in build(0)}
        for seed in SEEDS:
            if random and any(varies.values()):
                return
            for name, policy in build(seed):
                varies[name] |= DataWorld(prompts).advance(policy, STEPS) != histories[name]
        if random and not any(varies.values()):
            _violated(
                f"declares 'random', but {len(SEEDS) + 1} seeds make the same choices",
                "a generator made from context.seed",
            )
        if not random and any(varies.values()):
            moved = ", ".join(name for name, differs in varies.items() if differs)
            _violated(f"{moved}: the seed has an influence", "the capability 'random'")

    @pytest.mark.parametrize("point", [1, 37, 80])
    def test_a_restored_policy_makes_the_same_decisions(
        self, component: Subject, build: Any, prompts: list[Prompt], point: int
    ) -> None:
        """The state is restored through JSON into a new instance and into one with another history. A policy
        without state is replaced by a new one: it must not have remembered anything."""
        stateful = "stateful" in component.capabilities
        others = [Prompt(f"other-{prompt.id}", prompt.data) for prompt in prompts]
        for (name, first), (_, fresh), (_, used) in zip(build(), build(), build(), strict=True):
            world = DataWorld(prompts)
            world.advance(first, point)
            state = saved = None
            if stateful:
                state = first.state_dict()
                try:
                    saved = worlds.through_json(state)
                except (TypeError, ValueError) as error:
                    _violated(f"{name}: its state is not JSON-like: {error}", "JSON-like state")
            copies = [world.copy(), world.copy()]
            expected = world.advance(first, STEPS)
            if stateful and worlds.through_json(state) != saved:
                _violated(
                    f"{name}: the state that it returned changed while it continued",
                    "a state_dict that a checkpoint can hold",
                )
            heirs = {"a new instance": fresh}
            if stateful:
                DataWorld(others, seed=9).advance(used, 25)
                heirs["an instance with another history"] = used
            for (what, heir), copy in zip(heirs.items(), copies, strict=False):
                if stateful:
                    heir.load_state_dict(deepcopy(saved))
                if difference := worlds.first_difference(expected, copy.advance(heir, STEPS)):
                    _violated(
                        f"{name}: {what} in its place after {point} steps differs at {difference}",
                        "a state with everything that later decisions depend on, including generators"
                        if stateful
                        else "state_dict, load_state_dict and the capability 'stateful'",
                    )

    # --- manners -------------------------------------------------------------------------------

    def test_its_inputs_are_not_changed(self, build: Any, prompts: list[Prompt]) -> None:
        """Other policies see the same prompts, statistics and lists of rows."""
        demands = "that frozen data is not changed"
        for name, policy in build():
            for step in range(0, STEPS, 5):
                prompt = deepcopy(prompts[step % len(prompts)])
                if isinstance(policy, Admit):
                    policy.admit(prompt)
                group = DataWorld(prompts, step=step).group(prompt)
                before = _arrays(group)
                if isinstance(policy, Accept):
                    policy.accept(group)
                if changed := [k for k, v in before.items() if v != _arrays(group)[k]]:
                    _violated(f"{name}: accept changed {changed} of its group", demands)
                if prompt != prompts[step % len(prompts)]:
                    _violated(f"{name} changed the data of a prompt", demands)
            if isinstance(policy, Draw):
                fresh, kept = worlds.rows_of(12), worlds.rows_of(6)
                policy.draw(COUNT, fresh, kept, 4)
                if (fresh, kept) != (worlds.rows_of(12), worlds.rows_of(6)):
                    _violated(f"{name}: draw changed the lists that it was offered", demands)
            if isinstance(policy, Arrange):
                fresh = worlds.rows_of(12)
                policy.arrange(fresh, 4)
                if fresh != worlds.rows_of(12):
                    _violated(f"{name}: arrange changed the list that it was offered", demands)


def _arrays(group: GroupSummary) -> dict[str, list[Any]]:
    names = ("rewards", "lengths", "trained", "min_versions", "truncated")
    return {name: getattr(group, name).tolist() for name in names}
