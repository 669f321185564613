"""``python -m astraflow_testing.benchmarks REQUEST RESULT``: one component against another.

REQUEST is a JSON file: ``kind``, ``use`` and ``keys`` of the component, ``against`` and ``against_keys`` of the other
one (empty: the shipped one of the kind), ``pairs``, and for a reward, a workflow or an environment ``tasks``, the ``data`` of prompts, or
``source``, the name of a prompt source; for an engine or a trainer ``model``, a Hugging Face folder (empty: a model of 0.1 M
parameters). RESULT is written: what is measured (``unit``), ``against``, and what
:func:`astraflow_testing.benchmarks.pairs.measure` returns. Exit code 2, with one line, if a component cannot be built.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.types import ComponentContext, Prompt
from astraflow_testing.benchmarks import algorithms, backends, components, data_policies, processes
from astraflow_testing.benchmarks.pairs import Work, measure
from astraflow_testing.conformance.subject import POLICIES, context

UNITS = {
    "algorithm": "batch of 4096 tokens",
    "command": "call of --help",
    "data_policy": "prompt, or batch of 64 rows",
    "engine": "batch of 32 requests with 16 tokens to sample",
    "environment": "step",
    "launcher": "process that ends at once",
    "prompt_source": "prompt",
    "reward": "score of a completion",
    "tracker": "step with 16 figures",
    "trainer": "step of the optimizer on 4096 tokens",
    "transport": "version of 8 MiB",
    "workflow": "episode",
}
SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "algorithm": ("grpo", {}),
    "command": ("doctor", {}),
    "engine": ("torch", {}),
    "environment": ("binary_search", {}),
    "launcher": ("local", {}),
    "prompt_source": ("digits", {}),
    "reward": ("exact", {}),
    "tracker": ("tensorboard", {}),
    "trainer": ("torch", {}),
    "transport": ("http", {}),
    "workflow": ("single_turn", {}),
}
LEVELS: tuple[str, dict[str, Any]] = ("game_levels", {"game": "binary_search"})
"""Where the tasks of the shipped environment come from."""
ROLES = {
    "algorithm": "trainer",
    "data_policy": "dataflow",
    "launcher": "launcher",
    "prompt_source": "dataflow",
    "tracker": "launcher",
    "trainer": "trainer",
}
TASKS = tuple({"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(3, 19))


def run(request: dict[str, Any], folder: Path, ends: ExitStack) -> dict[str, Any]:
    """Measure what the request asks for; ``ends`` closes what was built."""
    catalog, kind, pairs = Catalog.discover(), request["kind"], request["pairs"]
    use, keys = request["against"], request["against_keys"]
    if not use:
        use, shipped = shipped_beside(catalog, kind, request["use"])
        keys = {**shipped, **keys}
    bench = _Bench(catalog, kind, Path(request["model"]) if request["model"] else None, ends)
    on = tasks_of(catalog, request, folder)
    ours = bench.work(request["use"], request["keys"], on, folder / "ours")
    # An environment has its own tasks; a reward is compared on the same ones.
    if kind == "environment" and use == SHIPPED[kind][0]:
        on = _prompts(catalog, *LEVELS, folder)
    theirs = bench.work(use, keys, on, folder / "theirs")
    return {"unit": UNITS[kind], "against": use, **measure(ours, theirs, pairs)}


def tasks_of(catalog: Catalog, request: dict[str, Any], folder: Path) -> list[Prompt]:
    """The prompts that the request names, or sums of two numbers."""
    if request["source"]:
        return _prompts(catalog, request["source"], {}, folder)
    return [Prompt(f"task-{n}", data) for n, data in enumerate(request["tasks"] or TASKS)]


def _prompts(catalog: Catalog, use: str, keys: dict[str, Any], folder: Path) -> list[Prompt]:
    """The first ones of a prompt source."""
    selected, config = catalog.validate_options("prompt_source", use, keys, f"prompt source {use}")
    source = selected.build(config, context("dataflow", folder))
    return [source[n] for n in range(min(len(source), len(TASKS)))]


def shipped_beside(catalog: Catalog, kind: str, use: str) -> tuple[str, dict[str, Any]]:
    """Name and keys of the shipped component of this kind; of a data policy, of one that does the same."""
    if kind in SHIPPED:
        return SHIPPED[kind]
    flags = catalog.flags(kind, use)
    for flag, other in data_policies.BESIDE.items():
        if flag in flags:
            return other
    raise UserError(
        f"no included data policy has the capabilities of {use!r} ({', '.join(sorted(flags))}); name one with --against"
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """The common part of both sides; ``model`` is a folder, or none for a small one."""

    catalog: Catalog
    kind: str
    model: Path | None
    ends: ExitStack

    def work(self, use: str, keys: dict[str, Any], tasks: list[Prompt], folder: Path) -> Work:
        """The work of one side."""
        folder.mkdir()
        if self.kind == "command":
            return processes.command(use)
        if self.kind == "transport":
            return components.TransportWork({"use": use, **keys}, folder)
        policies = components.SOLVER if self.kind in ("trainer", "workflow") else POLICIES
        told = context(ROLES.get(self.kind, "raas"), folder, policies=policies)
        told.directory.mkdir(exist_ok=True)
        built = self._built(self.kind, use, keys, told)
        match self.kind:
            case "algorithm":
                return algorithms.work(built)
            case "data_policy":
                return data_policies.work(built)
            case "engine":
                return backends.engine(built, backends.model_of(self.model, folder), self.ends)
            case "launcher":
                return processes.launcher(built, folder, self.ends)
            case "prompt_source":
                return components.prompt_source(built)
            case "reward":
                return components.reward(built, tasks)
            case "tracker":
                return processes.tracker(built, told.run, self.ends)
            case "trainer":
                loss = self._built("algorithm", SHIPPED["algorithm"][0], {}, told)
                model = backends.model_of(self.model, folder)
                return backends.trainer(built, loss, model, self.ends)
            case "workflow":
                return components.workflow(built, tasks)
        return components.environment(built, tasks, self.catalog.flags(self.kind, use))

    def _built(self, kind: str, use: str, keys: dict[str, Any], told: ComponentContext) -> Any:
        selected, config = self.catalog.validate_options(kind, use, keys, f"{kind} {use}")
        return selected.build(config, told)


def main(request: Path, result: Path) -> int:
    """Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as folder, ExitStack() as ends:
        try:
            found = run(json.loads(request.read_text(encoding="utf-8")), Path(folder), ends)
        except AstraFlowError as error:
            sys.stdout.write(f"{error}\n")
            return 2
    result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
