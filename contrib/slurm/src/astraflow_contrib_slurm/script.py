"""Batch scripts for sbatch. Pure: nothing is submitted."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from astraflow_contrib_slurm.config import SlurmConfig
from astraflow_launching.groups import HostGroup

STEP = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--no-kill")
"""A step that has its node's whole share of the job, in parallel with other steps."""
WARN_S = 180
"""Seconds before the time limit at which a run is asked to end."""
_MIB = 1 << 20


def options(config: SlurmConfig, component: HostGroup) -> list[str]:
    """Options of sbatch that ask for a group of hosts, a component of a heterogeneous job."""
    partition = (component.spot and config.spot_partition) or config.partition
    found = [
        f"--nodes={len(component.hosts)}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={component.cpus}",
    ]
    found += [f"--gres=gpu:{component.gpus}"] if component.gpus else []
    if component.memory_gb is not None:
        found.append(f"--mem={math.ceil(component.memory_gb * 1e9 / _MIB)}M")
    found += [f"--constraint={'&'.join(component.labels)}"] if component.labels else []
    found += [f"--partition={partition}"] if partition else []
    found += [f"--account={config.account}"] if config.account else []
    found += [f"--time={config.time_limit}"] if config.time_limit else []
    return [*found, *config.options]


def agents_script(
    config: SlurmConfig,
    job: str,
    found: Sequence[HostGroup],
    commands: Sequence[Sequence[Sequence[str]]],
    output: Path,
) -> str:
    """A job whose steps are the agents of a launcher elsewhere. ``commands``: of each node of each component."""
    lines = [
        "#!/bin/bash",
        *_header(config, found, job, str(output), "--no-requeue", "--no-kill"),
        "",
    ]
    for group, nodes in enumerate(commands):
        for index, command in enumerate(nodes):
            step = [*STEP, *([f"--het-group={group}"] if len(found) > 1 else [])]
            lines.append(f"{shlex.join([*step, f'--relative={index}', *command])} &")
    return "\n".join([*lines, "wait", ""])


def run_script(
    config: SlurmConfig,
    job: str,
    found: Sequence[HostGroup],
    program: Sequence[str],
    arguments: Sequence[str],
    runs: str,
) -> str:
    """A job that is the whole run: it starts ``program run`` with ``arguments`` inside its allocation, and continues the
    same run after it was preempted or reached its time limit. ``runs``: folder of run directories."""
    header = _header(config, found, job, f"{job}-%j.log", "--requeue", f"--signal=B:USR1@{WARN_S}")
    body = _BODY.format(
        program=shlex.join(program), arguments=shlex.join(arguments), runs=shlex.quote(runs)
    )
    return "\n".join(["#!/bin/bash", *header, "", body])


_BODY = """runs={runs}/slurm-$SLURM_JOB_ID
newest=$(ls -t "$runs"/*/config.toml 2>/dev/null | head -n 1)
if [ -n "$newest" ]; then
    {program} run --resume "${{newest%/config.toml}}" --no-live &
else
    {program} run {arguments} --set run.directory="$runs" --no-live &
fi
run=$!
again=
trap 'again=1; kill -TERM "$run"' USR1
trap 'kill -TERM "$run"' TERM
while :; do
    wait "$run"
    code=$?
    kill -0 "$run" 2>/dev/null || break
done
if [ -n "$again" ] && [ "$code" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _header(
    config: SlurmConfig, found: Sequence[HostGroup], job: str, output: str, *more: str
) -> list[str]:
    common = [f"--job-name={job}", f"--output={output}", "--open-mode=append", *more]
    lines = [f"#SBATCH {_quoted(option)}" for option in common]
    for index, component in enumerate(found):
        lines += ["#SBATCH hetjob"] if index else []
        lines += [f"#SBATCH {_quoted(option)}" for option in options(config, component)]
    return lines


def _quoted(option: str) -> str:
    """An option as sbatch reads it from a script."""
    if not any(each in option for each in " \"'#\\"):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
