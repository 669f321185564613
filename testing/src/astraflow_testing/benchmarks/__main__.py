"""``python -m astraflow_testing.benchmarks REQUEST RESULT``: one component beside another.

REQUEST is a JSON file: ``kind``, ``use`` and ``keys`` of the component, ``against`` and ``against_keys`` of the other
one (empty: the shipped one of the kind), ``pairs``, and for a reward, a workflow or an environment ``tasks``, the ``data`` of prompts, or
``source``, the name of a prompt source. RESULT is written: what is measured (``unit``), ``against``, and what
:func:`astraflow_testing.benchmarks.pairs.measure` returns. Exit code 2, with one line, if a component cannot be built.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.types import Prompt
from astraflow_testing.benchmarks import algorithms, components, data_policies
from astraflow_testing.benchmarks.pairs import Work, measure
from astraflow_testing.conformance.subject import POLICIES, context

UNITS = {
    "algorithm": "batch of 4096 tokens",
    "data_policy": "prompt, or batch of 64 rows",
    "environment": "step",
    "prompt_source": "prompt",
    "reward": "score of a completion",
    "transport": "version of 8 MiB",
    "workflow": "episode",
}
SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "algorithm": ("grpo", {}),
    "environment": ("binary_search", {}),
    "prompt_source": ("digits", {}),
    "reward": ("exact", {}),
    "transport": ("http", {}),
    "workflow": ("single_turn", {}),
}
LEVELS: tuple[str, dict[str, Any]] = ("game_levels", {"game": "binary_search"})
"""Where the tasks of the shipped environment come from."""
ROLES = {"algorithm": "trainer", "data_policy": "dataflow", "prompt_source": "dataflow"}
TASKS = tuple({"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(3, 19))


def run(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Measure what the request asks for."""
    catalog, kind, pairs = Catalog.discover(), request["kind"], request["pairs"]
    use, keys = request["against"], request["against_keys"]
    if not use:
        use, shipped = shipped_beside(catalog, kind, request["use"])
        keys = {**shipped, **keys}
    on = tasks_of(catalog, request, folder)
    ours = _work(catalog, kind, request["use"], request["keys"], on, folder / "ours")
    # An environment has tasks of its own; a reward is compared on the same.
    if kind == "environment" and use == SHIPPED[kind][0]:
        on = _prompts(catalog, *LEVELS, folder)
    theirs = _work(catalog, kind, use, keys, on, folder / "theirs")
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
        f"no shipped data policy does what {use!r} does ({', '.join(sorted(flags))}); name one with --against"
    )


def _work(
    catalog: Catalog,
    kind: str,
    use: str,
    keys: dict[str, Any],
    tasks: list[Prompt],
    folder: Path,
) -> Work:
    folder.mkdir()
    selected, config = catalog.validate_options(kind, use, keys, f"{kind} {use}")
    if kind == "transport":
        return components.TransportWork({"use": use, **keys}, folder)
    policies = components.SOLVER if kind == "workflow" else POLICIES
    built = selected.build(config, context(ROLES.get(kind, "raas"), folder, policies=policies))
    if kind == "algorithm":
        return algorithms.work(built)
    if kind == "data_policy":
        return data_policies.work(built)
    if kind == "prompt_source":
        return components.prompt_source(built)
    if kind == "reward":
        return components.reward(built, tasks)
    if kind == "workflow":
        return components.workflow(built, tasks)
    return components.environment(built, tasks, catalog.flags(kind, use))


def main(request: Path, result: Path) -> int:
    """Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as folder:
        try:
            found = run(json.loads(request.read_text(encoding="utf-8")), Path(folder))
        except AstraFlowError as error:
            sys.stdout.write(f"{error}\n")
            return 2
    result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
