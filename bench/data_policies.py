"""The cost of data policies with a million known prompts: time per decision, memory per prompt, a checkpoint.

A *decision* is all calls of a policy for one prompt: ``admit``, ``on_admitted``, ``accept``
of its group (made beforehand) and ``on_ended``, as far as it has them, for prompts in random order out of those known;
of a policy that
draws or arranges, one row of a batch of 256 out of as many fresh rows and a buffer of rows served before; of one
that orders, one key. *Bytes per prompt* are found by walking all objects that the policy holds, its dict from ids to rows
excepted. A *checkpoint* is ``state_dict``, encoded as JSON and written to a file.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from astraflow_core.catalog import Catalog
from astraflow_core.types import BufferedRow, GroupSummary, Prompt
from astraflow_testing.conformance.subject import context

POLICY = "solver"
GROUP, BATCH, KEPT = 8, 256, 100_000
WEIGHTS = {"even": 1.0, "odd": 2.0}
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "greso": ("greso", {}),
    "greso_repository": ("greso_repository", {"sampling_batch": 256, "train_sequences": 1024}),
    "solved_filter": ("solved_filter", {}),
    "quarantine": ("quarantine", {}),
    "curriculum": ("curriculum", {}),
    "mixing": ("mixing", {"weights": WEIGHTS}),
    "staleness_throttle": ("staleness_throttle", {}),
    "dynamic_sampling": ("dynamic_sampling", {}),
    "reward_filter": ("reward_filter", {"low": 0.1}),
    "length_filter": ("length_filter", {"high": 4096}),
    "ordering": ("ordering", {"by": "surprise"}),
    "replay": ("replay", {"ratio": 0.5}),
    "replay_prioritised": ("replay", {"ratio": 0.5, "selector": "prioritised"}),
    "staleness_decay": ("staleness_decay", {}),
}
"""Field → component and its keys."""


def measure(quick: bool) -> dict[str, float]:
    """The worst of all policies, and ``us_NAME``, ``bytes_NAME``, ``checkpoint_NAME`` for each; CPU time."""
    prompts, asked, rounds = (20_000, 2_000, 3) if quick else (1_000_000, 20_000, 5)
    known = [
        Prompt(f"prompt:{n:08}", {"prompt": "x", "source": ("even", "odd")[n % 2]})
        for n in range(prompts)
    ]
    found: dict[str, float] = {}
    for name in POLICIES:
        case = Case(name, known)
        case.meet()
        order = np.random.default_rng(1).integers(0, prompts, asked).tolist()
        decisions = [case.decision_s([known[i] for i in order]) for _ in range(rounds + 1)][1:]
        found[f"us_{name}"] = 1e6 * statistics.median(decisions)
        found[f"bytes_{name}"] = case.bytes_held() / prompts
        found[f"checkpoint_{name}"] = statistics.median(case.checkpoint_s() for _ in range(3))
    worst = {
        field: max(value for key, value in found.items() if key.startswith(prefix))
        for field, prefix in (
            ("decision_us", "us_"),
            ("bytes_per_prompt", "bytes_"),
            ("checkpoint_s", "checkpoint_"),
        )
    }
    return {**worst, **found, "prompts": float(prompts)}


class Case:
    """A policy, and what a dataflow asks of it."""

    def __init__(self, name: str, known: list[Prompt]) -> None:
        use, keys = POLICIES[name]
        selected, config = Catalog.discover().validate_options("data_policy", use, keys, name)
        self._scratch = tempfile.TemporaryDirectory()
        folder = Path(self._scratch.name)
        self.policy = selected.build(config, context("dataflow", folder))
        self._known, self._file = known, folder / "state.json"
        # Without variance and easy, the same and hard, and two with variance.
        self._rewards = [
            np.array(rewards, dtype=np.float64)
            for rewards in ([1.0] * GROUP, [0.0] * GROUP, [0.0, 1.0] * (GROUP // 2), [0.5, 1.0] * 4)
        ]
        generator = np.random.default_rng(0)
        rows = (
            [_row(n, generator) for n in range(BATCH + KEPT)]
            if hasattr(self.policy, "draw") or hasattr(self.policy, "arrange")
            else []
        )
        self._kept, self._fresh = rows[:KEPT], rows[KEPT:]
        if hasattr(self.policy, "key"):
            self._fresh = [_row(n, generator) for n in range(10 * BATCH)]

    def meet(self) -> None:
        """Show each prompt once to the policy; one in ten fails, if the policy tracks failures."""
        for number, prompt in enumerate(self._known):
            self._decide(prompt, self._group(prompt, number))
            if number % 10 == 0 and hasattr(self.policy, "on_ended"):
                self._end(prompt, "failed")
        if hasattr(self.policy, "on_version"):
            for version in (1, 2):
                self.policy.on_version(POLICY, version)

    def decision_s(self, prompts: list[Prompt]) -> float:
        """CPU seconds per decision."""
        groups = [self._group(prompt, number) for number, prompt in enumerate(prompts)]
        gc.collect()
        began = time.process_time()
        if hasattr(self.policy, "draw"):
            count = 4
            for _ in range(count):
                self.policy.draw(BATCH, self._fresh, self._kept, 4)
            return (time.process_time() - began) / (count * BATCH)
        if hasattr(self.policy, "arrange"):
            count = 8
            for _ in range(count):
                self.policy.arrange(self._fresh, 4)
            return (time.process_time() - began) / (count * BATCH)
        if hasattr(self.policy, "key"):
            for row in self._fresh:
                self.policy.key(row)
            return (time.process_time() - began) / len(self._fresh)
        for prompt, group in zip(prompts, groups, strict=True):
            self._decide(prompt, group)
        return (time.process_time() - began) / len(prompts)

    def bytes_held(self) -> int:
        """Bytes of all objects that the policy holds, but for tables from prompt ids to rows."""
        return sum(sys.getsizeof(each) for each in _held(self.policy, self._known[0].id))

    def checkpoint_s(self) -> float:
        """CPU seconds of a checkpoint; 0 for a policy without state."""
        if not hasattr(self.policy, "state_dict"):
            return 0.0
        gc.collect()
        began = time.process_time()
        self._file.write_bytes(msgspec.json.encode(self.policy.state_dict()))
        return time.process_time() - began

    def restored(self) -> Any:
        """The state that was written last."""
        return msgspec.json.decode(self._file.read_bytes())

    def _group(self, prompt: Prompt, number: int) -> GroupSummary:
        return _group(prompt, self._rewards[number % 4])

    def _decide(self, prompt: Prompt, group: GroupSummary) -> None:
        policy = self.policy
        if hasattr(policy, "admit"):
            policy.admit(prompt)
        if hasattr(policy, "on_admitted"):
            policy.on_admitted(prompt)
        if hasattr(policy, "accept"):
            policy.accept(group)
        if hasattr(policy, "on_ended"):
            self._end(prompt, "accepted")

    def _end(self, prompt: Prompt, outcome: str) -> None:
        self.policy.on_ended(prompt, outcome)


LENGTHS = np.full(GROUP, 1024, np.int32)
VERSIONS, WHOLE = np.full(GROUP, 1, np.int32), np.zeros(GROUP, np.bool_)


def _group(prompt: Prompt, rewards: Any) -> GroupSummary:
    return GroupSummary(POLICY, prompt, rewards, LENGTHS, LENGTHS, VERSIONS, WHOLE, 2)


def _row(number: int, generator: np.random.Generator) -> BufferedRow:
    reward, version = float(generator.random()), int(generator.integers(0, 4))
    return BufferedRow(number, f"prompt:{number:08}", version, 1024, reward, GROUP, 0.5, 0.3)


def _held(policy: Any, prompt_id: str) -> Iterator[Any]:
    """The policy and what it refers to, each once; not classes, modules and functions, and no dict of ids."""
    seen: set[int] = set()
    ahead = [policy]
    while ahead:
        each = ahead.pop()
        table = isinstance(each, dict) and prompt_id in each
        if id(each) in seen or table or isinstance(each, type | ModuleType) or callable(each):
            continue
        seen.add(id(each))
        yield each
        ahead += gc.get_referents(each)
