"""Objects and manifests, and what is read of a pod's status; no cluster is asked."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from stand_in_cluster import ALLOWED

from astraflow_contrib_kubernetes.config import KubernetesConfig
from astraflow_contrib_kubernetes.manifests import run_manifest
from astraflow_contrib_kubernetes.objects import agent_job, dns_name, labels
from astraflow_contrib_kubernetes.pods import end_of, hopeless, is_running, reason_to_wait
from astraflow_core.errors import UserError
from astraflow_core.protocols.launcher import ProcessSpec, Role
from astraflow_launching.groups import host_groups

NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def config(**keys: Any) -> KubernetesConfig:
    return KubernetesConfig.model_validate({"image": "lab/astraflow:1", **keys})


def spec(name: str, role: Role) -> ProcessSpec:
    return ProcessSpec(name, role, ("true",), {"ASTRAFLOW_TOKEN": "hidden"}, Path("log"))


def pod_spec(keys: KubernetesConfig) -> dict[str, Any]:
    (group,) = host_groups(keys, [spec("raas-0", "raas")])
    job = agent_job(keys, "a-0", group, ["raas-0"], steady=False, marks=labels("a", "1"))
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def test_a_pod_asks_for_what_its_processes_need() -> None:
    keys = config(
        claim="runs", pull_secret="hub", service_account="runner", priority_class="high", tolerations=["lab"],
        shared_memory_gb=2, spot_labels={"spot": "yes"}, gpu_resource="amd.com/gpu",
        raas={"gpus": 2, "cpus": 3.5, "memory_gb": 10, "labels": ["zone=a", "fast"], "spot": True},
    )  # fmt: skip
    found = pod_spec(keys)
    assert found["containers"][0]["resources"] == {
        "requests": {"cpu": "4", "memory": "10000000000", "amd.com/gpu": "2"},
        "limits": {"amd.com/gpu": "2"},
    }
    assert found["nodeSelector"] == {"zone": "a", "spot": "yes"}
    (term,) = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}
    assert [each["key"] for each in found["tolerations"]] == ["lab", "spot", "amd.com/gpu"]
    volumes = {each["name"]: each for each in found["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2000000000"}
    assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert found["serviceAccountName"] == "runner" and not found["automountServiceAccountToken"]


def test_what_was_not_asked_for_is_left_to_the_cluster() -> None:
    found = pod_spec(config())
    assert found["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    assert not {"nodeSelector", "affinity", "tolerations", "serviceAccountName"} & found.keys()


def test_no_secret_is_in_a_job_or_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[run]\n")
    texts = [
        str(pod_spec(config())),
        run_manifest(config(), "a", ["python"], [str(tmp_path / "run.toml")]),
    ]
    assert not any("hidden" in text or "Secret" in text for text in texts)


@given(st.text(max_size=80))
def test_any_name_of_a_run_gives_names_and_labels_that_kubernetes_accepts(run: str) -> None:
    assert re.fullmatch(NAME, dns_name(run)) and len(dns_name(run)) + len("-01234567-9999") <= 63
    value = labels(run, "1")["astraflow/run"]
    assert len(value) <= 63 and re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?", value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"image": "two words"}, "image"),
        ({"claim": "a", "volume": {"nfs": {}}}, "two sources"),
        ({"mount": "runs"}, "mount"),
        ({"raas": {"labels": ["a b"]}}, "labels"),
        ({"spot_labels": {"a/b/c": "d"}}, "spot_labels"),
    ],
)
def test_wrong_keys_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**keys)


# --- a manifest of a whole run ---------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A config that extends another."""
    (tmp_path / "base.toml").write_text('[run]\nname = "base"\n')
    (tmp_path / "run.toml").write_text('extends = "base.toml"\n')
    return tmp_path / "run.toml"


def manifest(keys: KubernetesConfig, *arguments: str) -> dict[str, dict[str, Any]]:
    text = run_manifest(keys, "my run", ["/here/python", "-m", "astraflow_runtime"], arguments)
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_the_role_allows_what_the_launcher_does_and_no_more(file: Path) -> None:
    """The stand-in for a cluster refuses everything else."""
    verbs = {"create": "POST", "delete": "DELETE", "list": "GET"}
    allowed = {
        (kind, verbs[verb])
        for rule in manifest(config(), str(file))["Role"]["rules"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == ALLOWED


def test_a_manifest_has_the_config_and_what_it_extends(file: Path) -> None:
    found = manifest(config(namespace="lab"), str(file), "--set", "run.steps=3")
    assert found["ConfigMap"]["data"] == {
        "run.toml": 'extends = "base.toml"\n',
        "base.toml": '[run]\nname = "base"\n',
    }
    assert {each["metadata"]["namespace"] for each in found.values()} == {"lab"}
    assert found["PersistentVolumeClaim"]["metadata"]["name"] == "astraflow-my-run"
    assert "PersistentVolumeClaim" not in manifest(config(claim="mine"), str(file))


def test_a_config_that_extends_files_of_other_folders_is_refused(file: Path) -> None:
    file.write_text('extends = "../base.toml"\n')
    with pytest.raises(UserError, match=r"\.\./base\.toml.*copy it there"):
        manifest(config(), str(file))


def test_the_job_starts_a_run_and_later_resumes_the_newest(file: Path, tmp_path: Path) -> None:
    """Its script, with a program that prints its arguments."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o700)
    keys = config(mount=str(tmp_path), agent_python=str(program))
    (container,) = manifest(keys, str(file), "--set", "run.name='two words'")["Job"]["spec"][
        "template"
    ]["spec"]["containers"]
    runs = tmp_path / "astraflow-my-run"

    def started() -> list[str]:
        done = subprocess.run(
            container["command"], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.splitlines()

    assert started() == [
        *shlex.split("-m astraflow_runtime run /etc/astraflow/run.toml --set"), "run.name='two words'",
        *shlex.split(f"--set launcher.claim=astraflow-my-run --set run.directory={runs} --no-live"),
    ]  # fmt: skip
    (runs / "run-1").mkdir(parents=True)
    (runs / "run-1/config.toml").touch()
    resumed = f"-m astraflow_runtime run --resume {runs}/run-1 --no-live"
    assert started() == resumed.split()


# --- pods ------------------------------------------------------------------------------------------


def pod(phase: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a-0"}, "status": {"phase": phase, **status}}


def in_state(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"state": state}]


def test_the_status_of_a_pod_is_read() -> None:
    pulling = pod("Pending", containerStatuses=in_state({"waiting": {"reason": "ErrImagePull"}}))
    assert not hopeless(pulling) and reason_to_wait(pulling) == "ErrImagePull"
    backing_off = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    assert (
        hopeless(pod("Pending", containerStatuses=in_state(backing_off)))
        == "ImagePullBackOff: no such image"
    )
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    assert end_of(pod("Failed", containerStatuses=in_state(killed))) == (
        "pod a-0 ended: OOMKilled, exit code 137"
    )
    evicted = pod("Failed", reason="Evicted", message="low on memory")
    assert end_of(evicted) == hopeless(evicted) == "pod a-0 ended: Evicted: low on memory"
    leaving = pod("Running")
    assert is_running(leaving)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not is_running(leaving)
    assert reason_to_wait({"metadata": {"name": "a-0"}}) == "it has not started"
