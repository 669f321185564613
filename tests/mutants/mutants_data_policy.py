"""Data policies with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import math
import random
from typing import Any, ClassVar

import numpy as np
import pytest

from astraflow_core.types import BufferedRow, ComponentContext, GroupSummary, Prompt, Verdict
from astraflow_testing.conformance.data_policy import DataPolicyConformance
from astraflow_testing.conformance.subject import Subject

ALL = frozenset({"admit", "accept", "key", "arrange", "draw", "stateful", "random"})


class Explorer:
    """Uses every point: skips prompts that keep giving equal rewards but looks at them again by chance
    (after GRESO, Zheng et al. 2025), drops flat groups, serves old versions first, short rows before long ones, and mixes a
    quarter of rows served before into a batch."""

    def __init__(self, context: ComponentContext) -> None:
        self._rng = np.random.default_rng(context.seed)
        self._flat: dict[str, int] = {}

    def admit(self, prompt: Prompt) -> Any:
        flat = self._flat.get(prompt.id, 0)
        return flat == 0 or float(self._rng.random()) > min(0.9, 0.4 * flat)

    def accept(self, group: GroupSummary) -> Any:
        flat = float(np.ptp(group.rewards)) == 0.0
        self._flat[group.prompt.id] = self._flat.get(group.prompt.id, 0) + 1 if flat else 0
        return Verdict(not flat, "all rewards equal" if flat else "")

    def key(self, row: BufferedRow) -> float:
        return float(row.min_version)

    def arrange(self, fresh: Any, version: int) -> Any:
        return sorted(fresh, key=lambda row: (row.length, row.arrival))

    def draw(self, count: int, fresh: Any, kept: Any, version: int) -> Any:
        old = min(count // 4, len(kept))
        if len(fresh) < count - old:
            return None
        chosen = self._rng.choice(len(kept), size=old, replace=False) if old else []
        return [*fresh[: count - old], *(kept[index] for index in chosen)]

    def state_dict(self) -> dict[str, Any]:
        return {"flat": dict(self._flat), "generator": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._flat = dict(state["flat"])
        self._rng.bit_generator.state = state["generator"]

    def metrics(self) -> dict[str, float]:
        return {"flat_prompts": float(sum(count > 0 for count in self._flat.values()))}


class OfExplorer(DataPolicyConformance):
    """The explorer with ``mistake`` in the place of its class."""

    mistake: ClassVar[type[Any]] = Explorer
    capabilities: ClassVar[frozenset[str]] = ALL

    @pytest.fixture
    def component(self) -> Subject:
        return Subject({"explorer": lambda context: self.mistake(context)}, self.capabilities)


class TestHealthy(OfExplorer):
    pass


class Unseeded(Explorer):
    def admit(self, prompt: Prompt) -> Any:
        return self._flat.get(prompt.id, 0) == 0 or random.random() > 0.5


class TestUnseeded(OfExplorer):
    wrong = "chooses with the generator of the process"
    mistake = Unseeded


class SeedsTheProcess(Explorer):
    def __init__(self, context: ComponentContext) -> None:
        super().__init__(context)
        random.seed(context.seed)

    def admit(self, prompt: Prompt) -> Any:
        return self._flat.get(prompt.id, 0) == 0 or random.random() > 0.5


class TestSeedsTheProcess(OfExplorer):
    wrong = "seeds the generator of the process, which others use too"
    mistake = SeedsTheProcess


class OneSeed(Explorer):
    def __init__(self, context: ComponentContext) -> None:
        super().__init__(context)
        self._rng = np.random.default_rng(0)


class TestOneSeed(OfExplorer):
    wrong = "uses the same seed in every run"
    mistake = OneSeed


class ForgetsTheGenerator(Explorer):
    def state_dict(self) -> dict[str, Any]:
        return {"flat": dict(self._flat)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._flat = dict(state["flat"])


class TestForgetsTheGenerator(OfExplorer):
    wrong = "its state lacks the generator"
    mistake = ForgetsTheGenerator


class ForgetsCounts(Explorer):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["generator"]


class TestForgetsCounts(OfExplorer):
    wrong = "restores the generator but not what it learned"
    mistake = ForgetsCounts


class Merges(Explorer):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for prompt, flat in state["flat"].items():
            self._flat.setdefault(prompt, flat)
        self._rng.bit_generator.state = state["generator"]

    def admit(self, prompt: Prompt) -> Any:
        flat = self._flat.get(prompt.id, 0)
        known = sum(count > 0 for count in self._flat.values())
        return flat == 0 or float(self._rng.random()) > min(0.9, 0.05 * known * flat)


class TestMerges(OfExplorer):
    wrong = "adds a restored state to what it holds already"
    mistake = Merges


class SharesItsState(Explorer):
    def state_dict(self) -> dict[str, Any]:
        return {"flat": self._flat, "generator": self._rng.bit_generator.state}


class TestSharesItsState(OfExplorer):
    wrong = "gives away its own dictionary as the state, and keeps writing into it"
    mistake = SharesItsState


class ArraysInItsState(Explorer):
    def state_dict(self) -> dict[str, Any]:
        counts = {prompt: np.int64(flat) for prompt, flat in self._flat.items()}
        return {"flat": counts, "generator": self._rng.bit_generator.state}


class TestArraysInItsState(OfExplorer):
    wrong = "puts numpy integers into its state"
    mistake = ArraysInItsState


class SharedByInstances(Explorer):
    seen: ClassVar[dict[str, int]] = {}

    def accept(self, group: GroupSummary) -> Any:
        self.seen[group.prompt.id] = self.seen.get(group.prompt.id, 0) + 1
        if self.seen[group.prompt.id] % 7 == 0:
            return Verdict(False, "seen often")
        return super().accept(group)


class TestSharedByInstances(OfExplorer):
    wrong = "counts in a dictionary of the class"
    mistake = SharedByInstances


class Stateless:
    """Drops a third group of a prompt, and keeps that count to itself."""

    def __init__(self, context: ComponentContext) -> None:
        self._seen: dict[str, int] = {}

    def accept(self, group: GroupSummary) -> Any:
        seen = self._seen[group.prompt.id] = self._seen.get(group.prompt.id, 0) + 1
        return Verdict(seen % 3 != 0, "seen often")


class TestSecretMemory(OfExplorer):
    wrong = "remembers what it saw and has no state for a checkpoint"
    mistake = Stateless
    capabilities = frozenset({"accept"})


class TestUndeclaredChance(OfExplorer):
    wrong = "makes random choices without the flag"
    capabilities = ALL - {"random"}


class TestUndeclaredPoint(OfExplorer):
    wrong = "implements key without the flag"
    capabilities = ALL - {"key"}


class NoDraw(Explorer):
    draw = None


class TestPromisedPoint(OfExplorer):
    wrong = "declares draw and does not implement it"
    mistake = NoDraw


class NeverAgain(Explorer):
    def admit(self, prompt: Prompt) -> Any:
        super().admit(prompt)
        return self._flat.get(prompt.id, 0) == 0


class TestNeverAgain(OfExplorer):
    wrong = "never looks again at a prompt that gave equal rewards once"
    mistake = NeverAgain


class KnownOnly(Explorer):
    def admit(self, prompt: Prompt) -> Any:
        return prompt.id in self._flat and super().admit(prompt)


class TestKnownOnly(OfExplorer):
    wrong = "admits only prompts that it has statistics of"
    mistake = KnownOnly


class NumberInWhy(Explorer):
    def why_refused(self, prompt: Prompt) -> str:
        return f"{prompt.id} was flat {self._flat[prompt.id]} times"


class TestNumberInWhy(OfExplorer):
    wrong = "puts ids into the reasons of refused prompts"
    mistake = NumberInWhy


class TruthyVerdicts(Explorer):
    def accept(self, group: GroupSummary) -> Any:
        return super().accept(group).accepted


class TestTruthyVerdicts(OfExplorer):
    wrong = "accepts with a bool where a Verdict is due"
    mistake = TruthyVerdicts


class NumberInTheReason(Explorer):
    def accept(self, group: GroupSummary) -> Any:
        verdict = super().accept(group)
        if verdict.accepted:
            return verdict
        return Verdict(False, f"all rewards of {group.prompt.id} equal")


class TestNumberInTheReason(OfExplorer):
    wrong = "puts the prompt's id into the reason, so that each is counted apart"
    mistake = NumberInTheReason


class Sorts(Explorer):
    def accept(self, group: GroupSummary) -> Any:
        group.rewards.sort()
        return super().accept(group)


class TestSorts(OfExplorer):
    wrong = "sorts the group's rewards in place, away from their lengths and versions"
    mistake = Sorts


class Pops(Explorer):
    def draw(self, count: int, fresh: Any, kept: Any, version: int) -> Any:
        if len(fresh) < count:
            return None
        return [fresh.pop(0) for _ in range(count)]


class TestPops(OfExplorer):
    wrong = "takes rows out of the list that it was offered"
    mistake = Pops


class DrawsTwice(Explorer):
    def draw(self, count: int, fresh: Any, kept: Any, version: int) -> Any:
        rows = [*fresh, *kept]
        if len(rows) < count:
            return None
        return [rows[index] for index in self._rng.integers(len(rows), size=count)]


class TestDrawsTwice(OfExplorer):
    wrong = "draws with replacement"
    mistake = DrawsTwice


class KeptFirst(Explorer):
    def draw(self, count: int, fresh: Any, kept: Any, version: int) -> Any:
        return [*kept, *fresh][:count] if len(kept) + len(fresh) >= count else None


class TestKeptFirst(OfExplorer):
    wrong = "serves the same kept rows for ever"
    mistake = KeptFirst


class ArrangesTwice(Explorer):
    def arrange(self, fresh: Any, version: int) -> Any:
        return [fresh[index] for index in self._rng.integers(max(len(fresh), 1), size=len(fresh))]


class TestArrangesTwice(OfExplorer):
    wrong = "arranges some rows twice"
    mistake = ArrangesTwice


class ShortOnly(Explorer):
    def arrange(self, fresh: Any, version: int) -> Any:
        return [row for row in super().arrange(fresh, version) if row.length < 40]


class TestShortOnly(OfExplorer):
    wrong = "leaves long rows out for ever"
    mistake = ShortOnly


class WaitsForKept(Explorer):
    def draw(self, count: int, fresh: Any, kept: Any, version: int) -> Any:
        return super().draw(count, fresh, kept, version) if len(kept) >= count // 4 else None


class TestWaitsForKept(OfExplorer):
    wrong = "waits for rows to replay before the first batch was served"
    mistake = WaitsForKept


class NanKeys(Explorer):
    def key(self, row: BufferedRow) -> float:
        return row.reward / row.group_std if row.group_std > 0.5 else math.nan


class TestNanKeys(OfExplorer):
    wrong = "orders by NaN where a group has no spread"
    mistake = NanKeys


class CostlyMetrics(Explorer):
    def metrics(self) -> dict[str, float]:
        sample = self._rng.choice([*self._flat.values(), 0], size=4)
        return {"flat_sampled": float(sample.mean())}


class TestCostlyMetrics(OfExplorer):
    wrong = "draws from its generator whenever somebody looks at its metrics"
    mistake = CostlyMetrics


class PrefixedMetrics(Explorer):
    def metrics(self) -> dict[str, float]:
        return {f"explorer/{name}": value for name, value in super().metrics().items()}


class TestPrefixedMetrics(OfExplorer):
    wrong = "puts its name before those of its metrics"
    mistake = PrefixedMetrics


class OneAtATime(Explorer):
    def __init__(self, context: ComponentContext) -> None:
        super().__init__(context)
        self._under_way: list[str] = []

    def admit(self, prompt: Prompt) -> Any:
        if prompt.id in self._under_way or not super().admit(prompt):
            return False
        self._under_way.append(prompt.id)
        return True

    def accept(self, group: GroupSummary) -> Any:
        if group.prompt.id in self._under_way:
            self._under_way.remove(group.prompt.id)
        return super().accept(group)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "under_way": list(self._under_way)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._under_way = list(state["under_way"])


class TestOneAtATime(OfExplorer):
    wrong = "holds a prompt back until its group returns, which that of a failed task never does"
    caught_by = "test_groups_may_finish_late_out_of_order_or_never"
    mistake = OneAtATime


class TestNothingToOffer(OfExplorer):
    wrong = "its prompts are not there, so that nothing is examined"
    caught_by = "test_the_suite_is_whole"

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        pytest.skip("no data set here")
