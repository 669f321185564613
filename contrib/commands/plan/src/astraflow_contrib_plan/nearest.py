"""The plan nearest to one that does not fit: fewest and mildest changes of keys, each plan made as the first one was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from astraflow_contrib_plan.processes import Hardware, RunPlan, engine_tables, plan_run
from astraflow_core.config.load import LoadedConfig
from astraflow_core.errors import AstraFlowError
from astraflow_runtime.config.loading import load_config

MOST_PLANS = 100
_MOST_WAYS = 8
"""Steps within which a table may be adjusted to fit."""
_LEAST_TOKENS = 1024
Change = tuple[float, dict[str, Any]]
"""How far it is from what was asked for, and keys with their new values."""


@dataclass(frozen=True)
class Nearest:
    """What to set, as ``--set`` takes it, and the plan that this gives."""

    overrides: list[str]
    plan: RunPlan


def nearest(
    file: str, overrides: Sequence[str], loaded: LoadedConfig, plan: RunPlan, hardware: Hardware
) -> Nearest | None:
    """The nearest plan without a problem; ``None`` if none of those that are tried fits. First each table that does not
    fit gets changes by which it does, then the whole run."""
    search = _Search(file, overrides, loaded, hardware)
    tables = [path for path in dict.fromkeys(path for path, _ in plan.problems) if path != "raas"]
    choices = [search.fitting(path) for path in tables]
    choices.append(sorted(_changes("raas", loaded, hardware), key=_cost))
    together = sorted(product(*choices), key=lambda changes: sum(map(_cost, changes)))
    for changes in together[:MOST_PLANS]:
        keys = {key: value for _, change in changes for key, value in change.items()}
        found = search.plan(keys)
        if found is not None and not found.problems:
            return Nearest(_words(keys), found)
    return None


class _Search:
    """Plans of the same file with other keys."""

    def __init__(
        self, file: str, overrides: Sequence[str], loaded: LoadedConfig, hardware: Hardware
    ) -> None:
        self._file, self._overrides = file, overrides
        self._loaded, self._hardware = loaded, hardware

    def plan(self, keys: dict[str, Any]) -> RunPlan | None:
        """The plan with these keys; ``None`` if a component has no such key or refuses a value."""
        try:
            changed = load_config(
                self._file, [*self._overrides, *_words(keys)], self._loaded.catalog
            )
        except AstraFlowError:
            return None
        return plan_run(changed, self._hardware)

    def fitting(self, path: str) -> list[Change]:
        """Changes by which a table fits, the mildest of each set of keys."""
        found: list[Change] = []
        for change in sorted(_changes(path, self._loaded, self._hardware), key=_cost):
            if len(found) == _MOST_WAYS:
                break
            if not change[1] or any(set(other) <= set(change[1]) for _, other in found):
                continue
            plan = self.plan(change[1])
            if plan is not None and all(at != path for at, _ in plan.problems):
                found.append(change)
        return found


def _cost(change: Change) -> float:
    return change[0]


def _words(keys: dict[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in keys.items()]


def _changes(path: str, loaded: LoadedConfig, hardware: Hardware) -> Iterator[Change]:
    """Changes of one table, none among them."""
    yield 0.0, {}
    if path == "raas":
        yield from _fewer(loaded)
        yield from _shared(loaded, hardware)
    elif path.endswith(".trainer"):
        yield from _of_trainer(path, loaded, hardware)
    else:
        yield from _of_engine(path, loaded, hardware)


def _fewer(loaded: LoadedConfig) -> Iterator[Change]:
    config = loaded.config
    replicas = config.raas.replicas
    for cost, fewer in enumerate(range(replicas - 1, 0, -1), 1):
        yield float(cost), {"raas.replicas": fewer}
    if not config.run.colocated:
        yield 3.0, {"run.colocated": True}
        yield 4.0, {"run.colocated": True, "raas.replicas": 1}


def _shared(loaded: LoadedConfig, hardware: Hardware) -> Iterator[Change]:
    """Engines of one GPU each on the GPUs that there are, with what else is on them."""
    if not hardware.gpus:
        return
    devices: dict[str, Any] = {}
    for path, table in engine_tables(loaded).items():
        _, keys = loaded.components[path]
        own = {} if keys is None else dict(keys)
        if not table.devices and not own.get("url") and own.get("tensor_parallel", 1) == 1:
            first = len(devices)
            devices[f"{path}.devices"] = [
                str((first + n) % hardware.gpus) for n in range(table.replicas)
            ]
    if devices:
        yield 0.5, devices


def _of_trainer(path: str, loaded: LoadedConfig, hardware: Hardware) -> Iterator[Change]:
    """Recompute layers, smaller micro-batches, more ranks, shorter completions, adapters: in this order, and together."""
    selected, keys = loaded.components[path]
    own = {} if keys is None else dict(keys)
    policy = path.split(".")[1]
    ranks = loaded.config.policies[policy].trainer.ranks
    kind = selected.component.name
    default = 16384 if hardware.has_gpus else 2048
    tokens = own.get("micro_batch_tokens") or default
    checkpointing: list[Change] = [(0.0, {})]
    if not own.get("gradient_checkpointing"):
        checkpointing.append((1.0, {f"{path}.gradient_checkpointing": True}))
    smaller: list[Change] = [(0.0, {})]
    smaller += [
        (0.5 * halved, {f"{path}.micro_batch_tokens": tokens >> halved})
        for halved in range(1, 6)
        if tokens >> halved >= _LEAST_TOKENS
    ]
    more: list[Change] = [(0.0, {})]
    limit = hardware.gpus or (8 if hardware.has_gpus else 1)
    for doubled in range(1, 5):
        count = ranks << doubled
        if count <= limit:
            change: dict[str, Any] = {f"{path}.ranks": count}
            if kind == "torch":
                change[f"{path}.use"] = "fsdp"
            more.append((1.5 + doubled, change))
    shorter: list[Change] = [(0.0, {})]
    for halved in range(1, 4):
        fewer = loaded.config.sampling.max_tokens >> halved
        if fewer >= 256:
            shorter.append((5.0 + halved, {"sampling.max_tokens": fewer}))
    adapters: list[Change] = [(0.0, {})]
    engine, served = loaded.components[f"policies.{policy}.engine"]
    if not own.get("lora_rank") and "lora" in engine.component.capabilities:
        ranks_of = {f"{path}.lora_rank": 16}
        if hasattr(served, "lora_rank"):
            ranks_of[f"policies.{policy}.engine.lora_rank"] = 16
        adapters.append((8.0, ranks_of))
    for parts in product(checkpointing, smaller, more, shorter, adapters):
        cost, change = sum(part[0] for part in parts), {}
        for part in parts:
            change.update(part[1])
        if change:
            yield cost, change


def _of_engine(path: str, loaded: LoadedConfig, hardware: Hardware) -> Iterator[Change]:
    """A smaller cache, a shorter context, workers that share the model."""
    _, keys = loaded.components[path]
    own = {} if keys is None else dict(keys)
    caches: list[Change] = [(0.0, {})]
    if (cache := own.get("cache_gb")) is not None:
        caches += [(float(n), {f"{path}.cache_gb": cache / 2**n}) for n in range(1, 6)]
    contexts: list[Change] = [(0.0, {})]
    row = hardware.prompt_tokens + loaded.config.sampling.max_tokens
    context = own.get("context_length")
    if context is None or context > row:
        contexts.append((1.0, {f"{path}.context_length": row}))
    workers: list[Change] = [(0.0, {})]
    if "tensor_parallel" in own and hardware.has_gpus:
        limit = hardware.gpus or 8
        have = int(own["tensor_parallel"])
        workers += [
            (1.5 + n, {f"{path}.tensor_parallel": have << n})
            for n in range(1, 4)
            if have << n <= limit
        ]
    table = engine_tables(loaded)[path]
    if table.devices and hardware.gpus and own.get("tensor_parallel", 1) == 1:
        there = [str(n % hardware.gpus) for n in range(table.replicas)]
        caches.append((0.5, {f"{path}.devices": there}))
    for parts in product(caches, contexts, workers):
        change = {key: value for part in parts for key, value in part[1].items()}
        if change:
            yield sum(part[0] for part in parts), change
