"""Generated batch scripts and what is read of Slurm's output; Slurm is not asked."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from astraflow_contrib_slurm.config import SlurmConfig
from astraflow_contrib_slurm.queue import JobPart, parsed_counts, parsed_queue
from astraflow_contrib_slurm.script import agents_script, options, run_script
from astraflow_core.protocols.launcher import ProcessSpec, Role
from astraflow_launching.groups import host_groups

SPECS = [
    ProcessSpec(name, role, ("true",), {"ASTRAFLOW_TOKEN": "hidden"}, Path("log"))
    for name, role in dict[str, Role](
        {"dataflow": "dataflow", "trainer-solver": "trainer", "raas-0": "raas", "raas-1": "raas", "raas-2": "raas"}
    ).items()
]  # fmt: skip


def config(**keys: object) -> SlurmConfig:
    return SlurmConfig.model_validate(keys)


def test_processes_without_needs_share_one_node() -> None:
    (only,) = host_groups(config(), SPECS)
    assert [sorted(node) for node in only.hosts] == [sorted(spec.name for spec in SPECS)]
    assert (only.cpus, only.gpus, only.memory_gb) == (5, 0, None)


def test_roles_with_other_needs_are_components_and_the_dataflow_is_on_the_first_node() -> None:
    keys = config(
        partition="gpu", spot_partition="cheap", account="lab", time_limit="1-00:00:00", options=["--qos=high"],
        trainer={"gpus": 8, "cpus": 32, "labels": ["a100", "fast"]},
        raas={"gpus": 2, "cpus": 3.5, "memory_gb": 10, "count": 2, "spot": True},
    )  # fmt: skip
    first, second = host_groups(keys, SPECS)
    assert first.hosts == [["trainer-solver", "dataflow"]]
    assert second.hosts == [["raas-0", "raas-2"], ["raas-1"]]
    common = ["--account=lab", "--time=1-00:00:00", "--qos=high"]
    assert options(keys, first) == [
        "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=33", "--gres=gpu:8", "--constraint=a100&fast",
        "--partition=gpu", *common,
    ]  # fmt: skip
    assert options(keys, second) == [
        "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=7", "--gres=gpu:4", "--mem=19074M",
        "--partition=cheap", *common,
    ]  # fmt: skip


def test_what_needs_nothing_is_not_put_on_spot_nodes() -> None:
    first, second = host_groups(config(raas={"gpus": 1, "spot": True}), SPECS)
    assert not first.spot and sorted(first.names) == ["dataflow", "trainer-solver"]
    assert second.spot and second.names == ["raas-0", "raas-1", "raas-2"]


def test_a_dataflow_with_needs_of_its_own_is_first_too() -> None:
    found = host_groups(config(dataflow={"labels": ["net"]}, trainer={"gpus": 1}), SPECS)
    assert "dataflow" in found[0].hosts[0] and len(found) == 2


def test_agents_script_has_a_step_for_each_node() -> None:
    keys = config(trainer={"gpus": 1}, raas={"gpus": 1, "count": 2})
    found = host_groups(keys, SPECS)
    commands = [[["python3", f"agent {group} {n}"] for n in range(len(c.hosts))] for group, c in enumerate(found)]  # fmt: skip
    text = agents_script(keys, "astraflow-x", found, commands, Path("/runs/a b/%j.log"))
    assert '#SBATCH "--output=/runs/a b/%j.log"' in text
    assert text.count("#SBATCH hetjob") == 1 and "hidden" not in text
    steps = [shlex.split(line) for line in text.splitlines() if line.startswith("srun")]
    assert [step[-4:] for step in steps] == [
        ["--relative=0", "python3", "agent 0 0", "&"],
        ["--relative=0", "python3", "agent 1 0", "&"],
        ["--relative=1", "python3", "agent 1 1", "&"],
    ]
    assert ["--het-group=0" in step for step in steps] == [True, False, False]
    assert (
        subprocess.run(["bash", "-n"], input=text, text=True, timeout=20, check=False).returncode
        == 0
    )


_PROGRAM = """#!/bin/bash
trap 'exit 143' TERM
echo "$@" >> said
mkdir -p runs/slurm-7/r && touch runs/slurm-7/r/config.toml
echo > begun
[ -e finish ] && exit 0
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(
    ("number", "finished", "code", "requeued"),
    [
        (signal.SIGUSR1, False, 143, True),
        (signal.SIGTERM, False, 143, False),
        (None, True, 0, False),
    ],
    ids=["time limit", "cancelled", "finished"],
)
def test_the_job_of_a_run_asks_it_to_end_and_resumes_it(
    number: signal.Signals | None, finished: bool, code: int, requeued: bool, tmp_path: Path
) -> None:
    for name, text in {
        "astraflow": _PROGRAM,
        "scontrol": '#!/bin/bash\necho "$@" > requeued\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    text = run_script(
        config(), "x", host_groups(config(), SPECS), ["./astraflow"], ["a b.toml"], "runs"
    )
    (tmp_path / "job").write_text(text)
    (tmp_path / "finish").touch() if finished else None
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    for _ in range(2):
        (tmp_path / "begun").unlink(missing_ok=True)
        with subprocess.Popen(["bash", "job"], cwd=tmp_path, env=variables) as job:
            end = time.monotonic() + 20
            while not (tmp_path / "begun").exists() and time.monotonic() < end:
                time.sleep(0.02)
            job.send_signal(number) if number else None
            assert job.wait(20) == code
    assert (tmp_path / "requeued").exists() == requeued
    assert (tmp_path / "said").read_text().splitlines() == [
        "run a b.toml --set run.directory=runs/slurm-7 --no-live",
        "run --resume runs/slurm-7/r --no-live",
    ]


def test_squeue_is_read_in_the_order_of_components() -> None:
    text = "7+1|PENDING|Resources|\n7+0|RUNNING|None|gpu[1-2]\n7+10|PENDING|None|\n"
    assert parsed_queue(text) == [
        JobPart("RUNNING", "None", "gpu[1-2]"), JobPart("PENDING", "Resources"), JobPart("PENDING", "None"),
    ]  # fmt: skip
    assert parsed_queue("12|RUNNING|None|a|b\n") == [JobPart("RUNNING", "None", "a|b")]
    assert parsed_queue("") == []


def test_counts_are_repeated() -> None:
    assert parsed_counts("4(x2),2") == [4, 4, 2] and parsed_counts("8") == [8]


@pytest.mark.parametrize(
    "keys", [{"partition": "a\n#SBATCH --uid=0"}, {"options": ["--x=1\n"]}, {"time_limit": "soon"}, {"options": ["x"]}]
)  # fmt: skip
def test_words_that_would_change_the_script_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="should match pattern"):
        config(**keys)
