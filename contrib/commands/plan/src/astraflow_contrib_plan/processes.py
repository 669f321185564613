"""The processes of a run, the devices that they take, and whether each device has room for them."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from astraflow_contrib_plan.memory import (
    GIB,
    EngineSetting,
    cache_tokens,
    engine_memory,
    setting_of,
    trainer_memory,
)
from astraflow_contrib_plan.shapes import ModelShape, shape_of
from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.models import EngineTable

TRAINERS = ("torch", "fsdp", "megatron")
ENGINES = {"torch": None, "hf": None, "vllm": 0.9, "sglang": 0.88}
"""Engine → share of a GPU's memory that it takes by default; ``None``: by ``cache_gb``."""
_EACH_RAAS = (
    "the launcher 'local' does not spread engines of several RaaS: without devices every engine is on the first GPU, and "
    "with them the engines of each RaaS are on the same GPUs. Launchers such as ssh give each RaaS its own GPUs"
)
CANNOT_SPLIT = "; this engine cannot split a model over GPUs"
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Hardware:
    """What there is: ``gpus`` of ``gpu_bytes`` each, or without GPUs the ``host_bytes`` of one host. ``gpus`` of 0 with
    ``gpu_bytes``: as many as are needed. ``prompt_tokens``: of the longest prompt, which the config does not say."""

    gpus: int = 0
    gpu_bytes: float = 0.0
    host_bytes: float = 0.0
    prompt_tokens: int = 1024

    @property
    def has_gpus(self) -> bool:
        """Whether models are on GPUs."""
        return self.gpu_bytes > 0


@dataclass(frozen=True)
class PlannedProcess:
    """A process, or one rank of it. ``parts``: part → bytes on each of its ``devices``; ``path``: the table of the config that
    decides them; ``unknown``: why nothing is known of its memory."""

    name: str
    role: str
    devices: tuple[int, ...] = ()
    parts: dict[str, float] = field(default_factory=dict)
    path: str = ""
    note: str = ""
    unknown: str = ""
    splits: bool = True
    """Whether more GPUs can share its model."""

    @property
    def total(self) -> float:
        """Bytes on each device."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class RunPlan:
    """All processes, what each device holds at most at a time, and why some do not fit."""

    processes: list[PlannedProcess]
    devices: dict[int, float]
    problems: list[tuple[str, str]]
    """Path of the table at fault (``"raas"`` for too few devices), and the reason."""
    assumed: list[str] = field(default_factory=list)
    """Overrides without which a run puts the engines on other devices than the plan."""
    warning: str = ""
    """What no override can say of the devices."""


def plan_run(loaded: LoadedConfig, hardware: Hardware) -> RunPlan:
    """Where each process of a run would be, and whether it fits."""
    found = list(_processes(loaded, hardware))
    devices = _per_device(found, loaded.config.run.colocated)
    wrong = list(_wrong_devices(loaded, hardware))
    problems = wrong or list(_problems(found, devices, hardware))
    if loaded.config.launcher.use != "local":
        return RunPlan(found, devices, problems)
    assumed = list(_assumed(loaded, found))
    if loaded.config.raas.replicas > 1 and assumed:
        return RunPlan(found, devices, problems, warning=_EACH_RAAS)
    return RunPlan(found, devices, problems, assumed)


def engine_tables(loaded: LoadedConfig) -> dict[str, EngineTable]:
    """Path → table of each engine."""
    config = loaded.config
    found = {f"policies.{name}.engine": table.engine for name, table in config.policies.items()}
    return found | {f"engines.{name}": table for name, table in config.engines.items()}


def _wrong_devices(loaded: LoadedConfig, hardware: Hardware) -> Iterator[tuple[str, str]]:
    for path, table in engine_tables(loaded).items():
        named = [part.strip() for each in table.devices for part in each.split(",")]
        for number in sorted({int(part) for part in named if part.isdecimal()}):
            if 0 < hardware.gpus <= number:
                yield path, f"{path}.devices names GPU {number}; {_there(hardware.gpus)}"


def _there(gpus: int) -> str:
    if gpus <= 2:
        return "there is 0" if gpus == 1 else "there are 0 and 1"
    return f"there are 0 to {gpus - 1}"


def _assumed(loaded: LoadedConfig, processes: list[PlannedProcess]) -> Iterator[str]:
    for path, table in engine_tables(loaded).items():
        own = [p for p in processes if p.role == "engine" and p.path == path and p.devices]
        if own and not table.devices and any(p.devices[0] for p in own):
            yield f"{path}.devices={json.dumps([','.join(map(str, p.devices)) for p in own])}"


def _processes(loaded: LoadedConfig, hardware: Hardware) -> Iterator[PlannedProcess]:
    config = loaded.config
    yield PlannedProcess("dataflow", "dataflow")
    free = 0
    for policy, trained in config.policies.items():
        shape = _shape(loaded, trained.model)
        ranks = trained.trainer.ranks
        for rank in range(ranks):
            name = f"trainer-{policy}" + (f" rank {rank}" if ranks > 1 else "")
            device = (free + rank,) if hardware.has_gpus else ()
            yield _trainer(loaded, hardware, policy, shape, name, device)
        free += ranks
    if config.run.colocated:
        free = 0
    tables: list[tuple[str, str, EngineTable, str]] = [
        (name, f"policies.{name}.engine", table.engine, table.model)
        for name, table in config.policies.items()
    ]
    tables += [
        (name, f"engines.{name}", table, table.model) for name, table in config.engines.items()
    ]
    for index in range(config.raas.replicas):
        yield PlannedProcess(f"raas-{index}", "raas")
        for name, path, table, model in tables:
            shape = _shape(loaded, model)
            for replica in range(table.replicas):
                process = _engine(
                    loaded, hardware, path, shape, f"raas-{index}/{name}", replica, free
                )
                free += len(process.devices) if not table.devices else 0
                yield process


def _shape(loaded: LoadedConfig, model: str) -> ModelShape:
    return shape_of(model, loaded.catalog, loaded.config.run.seed)


def _keys(loaded: LoadedConfig, path: str) -> tuple[str, dict[str, Any]]:
    """Name and keys of the component in a place."""
    selected, keys = loaded.components[path]
    return selected.component.name, {} if keys is None else dict(keys)


def longest_row(loaded: LoadedConfig, policy: str, shape: ModelShape, prompt_tokens: int) -> int:
    """Tokens of the longest row of a policy: a prompt and a completion, within the context."""
    _, engine = _keys(loaded, f"policies.{policy}.engine")
    row = prompt_tokens + loaded.config.sampling.max_tokens
    limits: list[int] = [row, engine.get("context_length") or row, shape.positions or row]
    return min(limits)


def _trainer(
    loaded: LoadedConfig, hardware: Hardware, policy: str, shape: ModelShape, name: str,
    devices: tuple[int, ...],
) -> PlannedProcess:  # fmt: skip
    path = f"policies.{policy}.trainer"
    kind, keys = _keys(loaded, path)
    if kind not in TRAINERS:
        return PlannedProcess(name, "trainer", devices, path=path, unknown=f"trainer {kind!r}")
    _, algorithm = _keys(loaded, f"policies.{policy}.algorithm")
    selected, _ = loaded.components[f"policies.{policy}.algorithm"]
    needs = frozenset(
        need
        for need, needed in (
            ("reference", float(algorithm.get("kl_coef", 0) or 0) > 0),
            ("values", "values" in selected.component.capabilities),
        )
        if needed
    )
    row = longest_row(loaded, policy, shape, hardware.prompt_tokens)
    ranks = loaded.config.policies[policy].trainer.ranks
    setting = setting_of(kind, ranks, keys, row, needs, hardware.has_gpus)
    note = f"{setting.tokens} tokens at once"
    if not shape.known:
        note += f"; activations of {shape.kind!r} taken as Llama's"
    return PlannedProcess(name, "trainer", devices, trainer_memory(shape, setting), path, note)


def _engine(
    loaded: LoadedConfig, hardware: Hardware, path: str, shape: ModelShape, name: str,
    replica: int, free: int,
) -> PlannedProcess:  # fmt: skip
    kind, keys = _keys(loaded, path)
    if keys.get("url"):
        return PlannedProcess(name, "engine", path=path, note="a server that runs elsewhere")
    if kind not in ENGINES:
        return PlannedProcess(name, "engine", path=path, unknown=f"engine {kind!r}")
    parallel = int(keys.get("tensor_parallel", 1))
    pinned = _table_of(loaded, path).devices
    devices: tuple[int, ...] = ()
    if hardware.has_gpus:
        own = pinned[replica].split(",") if pinned else []
        by_number = own and all(part.strip().isdecimal() for part in own)
        devices = tuple(map(int, own)) if by_number else tuple(range(free, free + parallel))
    setting = engine_setting(kind, keys, shape, hardware)
    parts = engine_memory(shape, setting, hardware.gpu_bytes or hardware.host_bytes)
    room = cache_tokens(shape, setting, parts)
    note = f"room for {room} tokens"
    if setting.context and room < setting.context:
        note += f", fewer than one sequence of {setting.context} tokens"
    splits = "tensor_parallel" in keys
    return PlannedProcess(f"{name} #{replica}", "engine", devices, parts, path, note, splits=splits)


def engine_setting(
    kind: str, keys: dict[str, Any], shape: ModelShape, hardware: Hardware
) -> EngineSetting:
    """The setting that the keys of an engine mean."""
    dtype = keys.get("dtype", "auto")
    narrow = shape.dtype_bytes if hardware.has_gpus else 4
    share = keys.get("gpu_memory_utilization") or keys.get("memory_fraction") or ENGINES[kind]
    cache_gb = keys.get("cache_gb")
    if cache_gb is None and (ENGINES[kind] is None or not hardware.has_gpus):
        cache_gb = 1.0
    return EngineSetting(
        kind=kind,
        weight_bytes=_DTYPE_BYTES.get(dtype, narrow),
        tensor_parallel=int(keys.get("tensor_parallel", 1)),
        cache_gb=cache_gb,
        utilization=share,
        context=keys.get("context_length") or (shape.positions if ENGINES[kind] else 0),
        batch=int(keys.get("max_batch", 256)),
        gpu=hardware.has_gpus,
    )


def _table_of(loaded: LoadedConfig, path: str) -> EngineTable:
    first, name, *_ = path.split(".")
    if first == "engines":
        return loaded.config.engines[name]
    return loaded.config.policies[name].engine


def _per_device(processes: list[PlannedProcess], colocated: bool) -> dict[int, float]:
    """The peak bytes of each device; with ``colocated`` engines sleep while trainers work, and only
    their CUDA contexts remain in the other's turn."""
    by_role: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    contexts: dict[int, float] = defaultdict(float)
    for process in processes:
        for device in process.devices or ((-1,) if process.parts else ()):
            by_role[device][process.role] += process.total
            contexts[device] += process.parts.get("CUDA", 0.0)
    found = {}
    for device, roles in sorted(by_role.items()):
        if colocated and device >= 0:
            found[device] = max(roles.values()) + contexts[device] / 2
        else:
            found[device] = sum(roles.values())
    return found


def _problems(
    processes: list[PlannedProcess], devices: dict[int, float], hardware: Hardware
) -> Iterator[tuple[str, str]]:
    limit = hardware.gpu_bytes or hardware.host_bytes
    where = "a GPU has" if hardware.has_gpus else "the host has"
    alone = set()
    for process in processes:
        if process.path in alone:
            continue
        if process.total > limit:
            alone.add(process.path)
            largest = max(process.parts, key=lambda part: process.parts[part])
            of_which = f"{gib(process.parts[largest])} are {largest}"
            needs = f"{process.name} needs {gib(process.total)}, of which {of_which}"
            whole = process.parts.get("weights", 0.0) > limit and not process.splits
            yield (
                process.path,
                f"{needs}, and {where} {gib(limit)}{CANNOT_SPLIT if whole else ''}",
            )
        elif "fewer than one sequence" in process.note:
            alone.add(process.path)
            yield process.path, f"{process.name} has {process.note}"
    needed = max((device for device in devices), default=-1) + 1
    if hardware.gpus and needed > hardware.gpus:
        yield (
            "raas",
            f"{needed} GPUs are needed, and there are {hardware.gpus}: {_counted(processes)}",
        )
    if not alone:
        for device, size in devices.items():
            if size > limit:
                name = "the host" if device < 0 else f"GPU {device}"
                who = [
                    p.name for p in processes if (device in p.devices) or (device < 0 and p.parts)
                ]
                yield (
                    "raas",
                    f"{name} would hold {gib(size)} ({', '.join(who)}), and has {gib(limit)}",
                )


def _counted(processes: list[PlannedProcess]) -> str:
    trainers = sum(len(p.devices) for p in processes if p.role == "trainer")
    engines = sum(len(p.devices) for p in processes if p.role == "engine")
    return f"{trainers} for trainers, {engines} for engines"


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.1f} MiB"


def host_bytes() -> float:
    """Memory of this host."""
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
