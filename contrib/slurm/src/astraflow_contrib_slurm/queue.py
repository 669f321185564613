"""Slurm's own commands: jobs are submitted, looked at and cancelled."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow_core.errors import PreflightError, RunFailed

COMMAND_S = 30.0
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
)
ALIVE = frozenset({"RUNNING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


@dataclass(frozen=True)
class JobPart:
    """A component of a job: its ``state``, the ``reason`` for it, and a list of ``nodes`` as Slurm writes it."""

    state: str
    reason: str = ""
    nodes: str = ""


def ask(*command: str, text: str | None = None) -> str:
    """What a command of Slurm prints. :class:`RunFailed` with what it says if it fails."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except FileNotFoundError as error:
        raise PreflightError(
            f"there is no {command[0]} here; start the run on a host with Slurm's commands, such as a login node"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{command[0]} did not answer within {COMMAND_S:g} s") from error
    if done.returncode:
        said = (
            " ".join(done.stderr.replace(f"{command[0]}: error: ", "").split())
            or f"exit code {done.returncode}"
        )
        raise RunFailed(f"{command[0]}: {said}")
    return done.stdout


def submit(script: str, export: Sequence[str]) -> str:
    """The id of a new job. Its environment has the variables of ``export`` only."""
    printed = ask("sbatch", "--parsable", f"--export={','.join(export)}", text=script)
    return printed.strip().partition(";")[0]


def parts(job: str) -> list[JobPart]:
    """The components of a job, in their order; none once Slurm has forgotten it."""
    try:
        return parsed_queue(
            ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%i|%T|%r|%N")
        )
    except RunFailed as error:
        if "Invalid job id" in str(error):
            return []
        raise


def parsed_queue(text: str) -> list[JobPart]:
    """Lines ``ID|STATE|REASON|NODES`` of squeue; components of a heterogeneous job have ids such as ``12+1``."""
    rows = [line.split("|", 3) for line in text.splitlines() if line.count("|") >= 3]
    rows.sort(key=lambda row: int(row[0].partition("+")[2] or 0))
    return [JobPart(state, reason, nodes) for _, state, reason, nodes in rows]


def parsed_counts(text: str) -> list[int]:
    """``"4(x2),2"`` of SLURM_JOB_CPUS_PER_NODE is 4, 4 and 2."""
    found: list[int] = []
    for each in text.split(","):
        count, _, times = each.partition("(x")
        found += [int(count)] * int(times.rstrip(")") or 1)
    return found


def node_names(nodes: str) -> list[str]:
    """``"gpu[1-3]"`` as a list."""
    return ask("scontrol", "show", "hostnames", nodes).split() if nodes else []


def node_labels(nodes: Sequence[str]) -> dict[str, frozenset[str]]:
    """The features of nodes."""
    printed = ask("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%f")
    found: dict[str, frozenset[str]] = {}
    for line in printed.splitlines():
        name, _, features = line.strip().partition("|")
        found[name] = frozenset(features.split(",")) - {"(null)", ""}
    return found


def end_of(job: str) -> str:
    """How a job ended: ``"job 12 ended: PREEMPTED"``. Clusters differ in what they keep for how long."""
    for part in parts(job):
        if part.state not in WAITING | ALIVE | {"COMPLETED"}:
            why = f" ({part.reason})" if part.reason not in ("", "None") else ""
            return f"job {job} ended: {part.state}{why}"
    return f"job {job} ended"


def cancel(job: str) -> None:
    """End a job with all its steps; one that has ended is no error."""
    try:
        ask("scancel", job)
    except RunFailed as error:
        if "Invalid job id" not in str(error) and "already" not in str(error):
            raise


def controller() -> str:
    """The host of Slurm's controller."""
    found = re.search(
        r"^SlurmctldHost\S*\s*=\s*([^\s(]+)(?:\(([^)]+)\))?",
        ask("scontrol", "show", "config"),
        re.M,
    )
    if found is None:
        raise PreflightError(
            "scontrol names no controller; set [launcher] address to that of this host"
        )
    return found[2] or found[1]
