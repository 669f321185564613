"""``astraflow plan FILE --skypilot ARTIFACT``: SkyPilot accepts the task file, and its commands start the run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from published_task_schema import task_schema

from astraflow_runtime.cli import main
from astraflow_testing.runs import TABLE_RUN

NODES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(TABLE_RUN.replace("replicas = 1", "replicas = 2"))
    return "run.toml"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", "run.toml", "--skypilot", "run.afpack", *arguments]) == 0
    task: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return task


def commands(task: dict[str, Any], node: int) -> list[str]:
    """What a node starts."""
    cases = task["run"].partition(f"  {node})\n")[2].partition(";;")[0]
    return [line.strip() for line in cases.splitlines() if line.strip()]


def test_the_first_node_has_the_trainers_and_the_others_the_raas(
    file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "--set",
        "launcher.use=ray",
        "--set",
        "launcher.raas={gpus=2, spot=true, memory_gb=10}",
    ]
    task = printed(capsys, "--nodes", "2", "--accelerators", "H100:4", *words)
    assert task["num_nodes"] == 2
    assert task["resources"] == {"accelerators": "H100:4", "memory": "20+"}
    assert task["file_mounts"] == {"~/astraflow/run.afpack": str(tmp_path / "run.afpack")}
    assert task["secrets"] == {"ASTRAFLOW_TOKEN": None}
    first, second = commands(task, 0), commands(task, 1)
    assert [line.split()[0] for line in first] == ["CUDA_VISIBLE_DEVICES="] * 2
    assert [line.split()[4] for line in first] == ["dataflow", "trainer"]
    assert [line.split()[0] for line in second] == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "CUDA_VISIBLE_DEVICES=2,3",
    ]
    assert all(shlex.split(line).count("launcher.use=ray") == 1 for line in first + second)
    alone = commands(printed(capsys), 0)
    assert [line.split()[3] for line in alone] == ["dataflow", "trainer", "raas", "raas"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--nodes", "0"), "--nodes 0: expected at least 1"),
        (("--nodes", "4"), "3 nodes for RaaS, and [raas] replicas is 2"),
        (("--set", "launcher.use=ray", "--set", "launcher.raas.gpus=1"), "needs 2 GPUs on a node: say which with --acc"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_is_refused(
    file: str, arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", file, "--skypilot", "run.afpack", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.backend
def test_skypilot_accepts_the_file(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the schemas of its own wheel, which refuse unknown keys."""
    words = ["--set", "launcher.use=ray", "--set", "launcher.raas={gpus=1, spot=true, cpus=2}"]
    words += ["--set", "launcher.trainer.spot=true", "--set", "launcher.dataflow.spot=true"]
    validator = Draft7Validator(task_schema())
    small, task = (
        printed(capsys),
        printed(capsys, "--nodes", "3", "--accelerators", "H100:8", *words),
    )
    for each in (small, task):
        assert [error.message for error in validator.iter_errors(each)] == []
    assert task["resources"]["use_spot"] is True
    assert list(validator.iter_errors({**task, "node": 2})), "the schema refuses unknown keys"


@pytest.mark.slow
def test_its_commands_run_the_run_on_two_nodes(
    file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nodes are addresses of loopback, each with a home folder of its own; the artifact installs this interpreter."""
    task = printed(capsys, "--nodes", "2", "--set", "run.steps=3")
    with zipfile.ZipFile("run.afpack", "w") as archive:
        made = {"pythons": {"services": sys.executable}, "run": str(tmp_path)}
        archive.writestr("__main__.py", f"print({json.dumps(made)!r})")
    nodes = []
    for rank, address in enumerate(NODES):
        home = tmp_path / address
        (home / "astraflow").mkdir(parents=True)
        (home / "astraflow" / "run.afpack").symlink_to(tmp_path / "run.afpack")
        variables = {
            "HOME": str(home), "ASTRAFLOW_TOKEN": "secret-of-the-run", "SKYPILOT_NODE_IPS": "\n".join(NODES),
            "SKYPILOT_NODE_RANK": str(rank), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        command = ["bash", "-c", f"{task['setup']}\n{task['run']}"]
        log = (home / "log").open("wb")
        nodes.append(
            subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log, start_new_session=True)
        )  # fmt: skip
    try:
        codes = [node.wait(120) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, 9)
    said = "\n".join((tmp_path / address / "log").read_text() for address in NODES)
    assert codes == [0, 0], said
    status = json.loads((tmp_path / NODES[0] / "astraflow/run/status.json").read_text())
    assert status["invariants_ok"] and len(status["raas"]) == 2, status
    assert (tmp_path / NODES[0] / "astraflow/run/metrics.jsonl").read_text().count('"step"') == 3
    assert not (tmp_path / NODES[1] / "astraflow/run/metrics.jsonl").exists()
