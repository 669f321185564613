"""``astraflow plan FILE``: what would start where, and whether it fits."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table
from astraflow_runtime.cli.run import add_overrides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from astraflow_contrib_plan.estimate import TimeEstimate
    from astraflow_contrib_plan.nearest import Nearest
    from astraflow_contrib_plan.processes import Hardware, RunPlan

_GB = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Lists the processes of a run with the memory of each on its device, and estimates hours and cost. Starts and "
        "fetches nothing. Exits with 2 and the nearest plan that fits if something cannot fit."
    )
    parser.add_argument("file", metavar="FILE", help="the run's TOML file")
    add_overrides(parser)
    parser.add_argument(
        "--launcher",
        action="store_true",
        help="print only the files that the run's launcher generates, such as a batch script for Slurm",
    )
    sky = parser.add_argument_group("SkyPilot")
    sky.add_argument(
        "--skypilot",
        type=Path,
        metavar="ARTIFACT",
        help="print only the task file with which SkyPilot runs this artifact of FILE",
    )
    sky.add_argument(
        "--nodes", type=int, default=1, metavar="N", help="nodes of the task; default: 1"
    )
    sky.add_argument(
        "--accelerators", default="", metavar="NAME:N", help="GPUs of each node, such as H100:8"
    )
    hardware = parser.add_argument_group("hardware; without GPUs, the memory of the host")
    hardware.add_argument(
        "--gpus", metavar="N", type=int, help="number of available GPUs; default: as many as needed"
    )
    hardware.add_argument(
        "--gpu-memory-gb",
        metavar="GB",
        type=float,
        help="memory of each GPU, in 10⁹ bytes; required with --gpus",
    )
    hardware.add_argument(
        "--host-memory-gb",
        metavar="GB",
        type=float,
        help="memory of the host; default: that of this one",
    )
    hardware.add_argument(
        "--prompt-tokens",
        metavar="N",
        type=int,
        default=1024,
        help="tokens of the longest prompt; default: 1024",
    )
    time = parser.add_argument_group("time and cost")
    time.add_argument(
        "--from",
        dest="recorded",
        metavar="RUN",
        help="estimate by simulating what this run recorded",
    )
    time.add_argument(
        "--tokens-per-s",
        metavar="N",
        type=float,
        help="tokens that all RaaS sample each second, instead of --from",
    )
    time.add_argument("--gpu-cost-per-hour", metavar="COST", type=float, help="of one GPU")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)
    teach(
        parser,
        "plan.md",
        "plan run.toml --gpus 8 --gpu-memory-gb 80 --tokens-per-s 20000 --gpu-cost-per-hour 3.5",
        "plan examples/quickstart.toml --from quickstart-20260102-030405",
        "plan run.toml --launcher --set launcher.use=slurm",
        "plan run.toml --skypilot run.afpack --nodes 2 --accelerators H100:8",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plan, and print it; 2 if something does not fit."""
    from astraflow_contrib_plan.estimate import estimate
    from astraflow_contrib_plan.nearest import nearest
    from astraflow_contrib_plan.processes import plan_run
    from astraflow_runtime.cli.run_directory import find_run
    from astraflow_runtime.config.loading import load_config

    hardware = _hardware(arguments)
    if arguments.recorded is not None and arguments.tokens_per_s is not None:
        raise UserError("--from and --tokens-per-s both say how fast the run is; give one of them")
    recorded = None
    if arguments.recorded is not None:
        recorded = find_run(arguments.recorded, named_by="--from")
    loaded = load_config(arguments.file, arguments.overrides)
    if arguments.launcher:
        from astraflow_contrib_plan.generated import generated_files

        _print_files(generated_files(loaded, arguments.file, arguments.overrides), arguments.json)
        return 0
    if arguments.skypilot is not None:
        from astraflow_contrib_plan.skypilot import SkyRequest, skypilot_task

        request = SkyRequest(arguments.skypilot, arguments.nodes, arguments.accelerators)
        print_line(skypilot_task(loaded, arguments.file, arguments.overrides, request).rstrip("\n"))
        return 0
    plan = plan_run(loaded, hardware)
    other = None
    if plan.problems:
        other = nearest(arguments.file, arguments.overrides, loaded, plan, hardware)
    if arguments.gpu_cost_per_hour is not None:
        _say_unused_cost(arguments, hardware)
    time = estimate(loaded.config, recorded, arguments.tokens_per_s)
    gpus = 0 if not hardware.has_gpus else hardware.gpus or len(plan.devices)
    if arguments.json:
        print_json(_described(plan, other, time, gpus, arguments.gpu_cost_per_hour))
    else:
        _print(plan, other, time, gpus, arguments.gpu_cost_per_hour)
    return 2 if plan.problems else 0


def _print_files(files: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json({"files": dict(files)})
        return
    for name, text in files.items():
        if len(files) > 1:
            print_line(f"==> {name}")
        print_line(text.rstrip("\n"))


def _say_unused_cost(arguments: argparse.Namespace, hardware: Hardware) -> None:
    timed = arguments.recorded is not None or arguments.tokens_per_s is not None
    lacks = [] if timed else ["--from or --tokens-per-s"]
    lacks += [] if hardware.has_gpus else ["--gpu-memory-gb"]
    if lacks:
        print_line(
            f"astraflow: --gpu-cost-per-hour is not used without {' and '.join(lacks)}", sys.stderr
        )


def _hardware(arguments: argparse.Namespace) -> Hardware:
    from astraflow_contrib_plan.processes import Hardware, host_bytes

    for name in ("gpus", "gpu_memory_gb", "host_memory_gb", "prompt_tokens", "tokens_per_s", "gpu_cost_per_hour"):  # fmt: skip
        value = getattr(arguments, name)
        if value is not None and not 0 < value < 1e15:
            raise UserError(f"--{name.replace('_', '-')} {value}: expected a number above 0")
    if arguments.gpus is not None and arguments.gpu_memory_gb is None:
        raise UserError("--gpus needs --gpu-memory-gb, the memory of each, such as 80")
    host = arguments.host_memory_gb
    return Hardware(
        gpus=arguments.gpus or 0,
        gpu_bytes=(arguments.gpu_memory_gb or 0.0) * _GB,
        host_bytes=host_bytes() if host is None else host * _GB,
        prompt_tokens=arguments.prompt_tokens,
    )


def _print(
    plan: RunPlan,
    other: Nearest | None,
    time: TimeEstimate | None,
    gpus: int,
    per_hour: float | None,
) -> None:
    from astraflow_contrib_plan.processes import CANNOT_SPLIT, gib

    _print_processes(plan)
    for device, size in plan.devices.items():
        print_line(
            f"{'the host' if device < 0 else f'GPU {device}'}: {gib(size)} at most at a time"
        )
    _print_assumed(plan)
    print_line()
    if time is None:
        print_line("time: unknown; give --from RUN, a run that was recorded, or --tokens-per-s N")
    else:
        print_line(f"time: {time.step_s:.3g} s a step, {time.steps} steps, {time.hours:.3g} h")
        print_line(f"  from {time.origin}")
        if per_hour is not None and gpus:
            cost = time.cost(gpus, per_hour)
            print_line(f"cost: {cost:.2f}, {gpus} GPUs at {per_hour:g} an hour")
    if not plan.problems:
        return
    print_line()
    for _, problem in plan.problems:
        print_line(f"does not fit: {problem}")
    if other is None:
        more = "larger or more GPUs, are needed"
        if any(CANNOT_SPLIT in problem for _, problem in plan.problems):
            more = "larger GPUs, or an engine that splits a model, are needed"
        print_line(f"no plan near it fits: a smaller model, or {more}")
        return
    print_line("the nearest plan that fits:")
    for words in other.overrides:
        print_line(f"  --set '{words}'")
    _print_processes(other.plan)
    _print_assumed(other.plan)


def _print_assumed(plan: RunPlan) -> None:
    if plan.warning:
        print_line(f"warning: {plan.warning}")
    if plan.assumed:
        print_line("assumed here; without it a run puts every engine on the first GPU:")
        for words in plan.assumed:
            print_line(f"  --set '{words}'")


def _print_processes(plan: RunPlan) -> None:
    from astraflow_contrib_plan.processes import gib

    rows = []
    for process in plan.processes:
        where = ",".join(f"GPU {device}" for device in process.devices) or "host"
        parts = ", ".join(f"{name} {gib(size)}" for name, size in process.parts.items())
        if process.unknown:
            parts = f"unknown: no figures for {process.unknown}"
        total = gib(process.total) if process.parts else "-"
        rows.append((process.name, process.role, where, total, parts or "-", process.note))
    print_table(("process", "role", "where", "memory", "parts", "note"), rows)


def _described(
    plan: RunPlan,
    other: Nearest | None,
    time: TimeEstimate | None,
    gpus: int,
    per_hour: float | None,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        **_plan(plan),
        "fits": not plan.problems,
        "problems": [problem for _, problem in plan.problems],
        "nearest": None if other is None else {"set": other.overrides, **_plan(other.plan)},
        "time": None,
    }
    if time is not None:
        found["time"] = {
            "step_s": time.step_s,
            "steps": time.steps,
            "hours": time.hours,
            "origin": time.origin,
            "cost": None if per_hour is None or not gpus else time.cost(gpus, per_hour),
        }
    return found


def _plan(plan: RunPlan) -> dict[str, Any]:
    return {
        "processes": [
            {
                "name": process.name,
                "role": process.role,
                "devices": list(process.devices),
                "bytes": process.parts,
                "note": process.note,
                "unknown": process.unknown,
            }
            for process in plan.processes
        ],
        "assumed": plan.assumed,
        "warning": plan.warning,
        "devices": {
            "host" if device < 0 else str(device): size for device, size in plan.devices.items()
        },
    }
