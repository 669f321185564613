"""The objects that a launcher creates. Pure: no API server is asked."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow_contrib_kubernetes.config import KubernetesConfig
from astraflow_launching.groups import HostGroup

Object = dict[str, Any]

DESCRIPTION = "/var/run/astraflow"
"""Where a pod finds the description of its agent."""
FILE = "agent.json"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (of a pod, which has 64 MiB of it by default)
STEADY = "astraflow/steady"
LAUNCH = "astraflow/launch"
RUN = "astraflow/run"
GRACE_S = 45
"""Seconds that a pod which is taken away may take to end: its agent gives processes thirty."""
KEEP_S = 3600
"""Seconds after which the cluster removes a job that ended, if its launcher does not."""
_LONGEST_NAME = 40


def dns_name(text: str) -> str:
    """``text`` as the beginning of an object's name."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return f"astraflow-{words}" if words else "astraflow"


def labels(run: str, launch: str) -> dict[str, str]:
    """Labels of all objects of a launch; ``launch`` is its id."""
    value = re.sub(r"[^A-Za-z0-9._-]+", "-", run)[:63].strip("-._")
    return {
        "app.kubernetes.io/name": "astraflow",
        "app.kubernetes.io/managed-by": "astraflow",
        RUN: value,
        LAUNCH: launch,
    }


def owned_by(kind: str, version: str, name: str, uid: str) -> list[Object]:
    """Owner references: an object that goes with another."""
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": uid}]


def agent_job(
    config: KubernetesConfig,
    name: str,
    group: HostGroup,
    processes: Sequence[str],
    steady: bool,
    marks: Mapping[str, str],
) -> Object:
    """A job with one pod, which runs the agent of one host. It is not tried again: processes are restarted by the
    launcher, in another job if need be. ``steady``: a dataflow or a trainer is among its ``processes``; ``marks`` are its
    labels."""
    queue = {} if config.queue is None else {"kueue.x-k8s.io/queue-name": config.queue}
    inside = {**marks, STEADY: "true"} if steady else dict(marks)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**marks, **queue},
            "annotations": {"astraflow/processes": ", ".join(processes)},
        },
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEEP_S,
            "template": {
                "metadata": {"labels": inside},
                "spec": _pod(config, name, group),
            },
        },
    }


def agent_secret(name: str, description: str, marks: Mapping[str, str], job_uid: str) -> Object:
    """What an agent needs to connect to its launcher; it goes with its job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": dict(marks),
            "ownerReferences": owned_by("Job", "batch/v1", name, job_uid),
        },
        "type": "Opaque",
        "immutable": True,
        "data": {FILE: base64.b64encode(description.encode()).decode()},
    }


def budget(name: str, count: int, marks: Mapping[str, str], job: str, job_uid: str) -> Object:
    """Keeps ``count`` pods of dataflow and trainers from voluntary disruptions, such as the drain of a node. Of pods without
    a scale a budget knows only ``minAvailable``. It goes with ``job``."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": name,
            "labels": dict(marks),
            "ownerReferences": owned_by("Job", "batch/v1", job, job_uid),
        },
        "spec": {
            "minAvailable": count,
            "selector": {"matchLabels": {LAUNCH: marks[LAUNCH], STEADY: "true"}},
        },
    }


def run_volume(config: KubernetesConfig) -> tuple[list[Object], list[Object]]:
    """The volume with the run directory, and its mount; none if the config names none."""
    if config.claim is None and config.volume is None:
        return [], []
    source = config.volume or {"persistentVolumeClaim": {"claimName": config.claim}}
    return [{"name": "runs", **source}], [{"name": "runs", "mountPath": config.mount}]


def restricted() -> Object:
    """What a container may: nothing that needs more than the rights of its user."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _pod(config: KubernetesConfig, name: str, group: HostGroup) -> Object:
    runs, mounts = run_volume(config)
    limit = (
        {} if config.shared_memory_gb is None else {"sizeLimit": _bytes(config.shared_memory_gb)}
    )
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": "agent",
                "image": config.image,
                "command": [config.agent_python, "-m", "astraflow_launching.agent"],
                "args": ["dial", f"{DESCRIPTION}/{FILE}"],
                "resources": _resources(config, group),
                "securityContext": restricted(),
                "volumeMounts": [
                    {"name": "agent", "mountPath": DESCRIPTION, "readOnly": True},
                    {"name": "shared-memory", "mountPath": SHARED_MEMORY},
                    *mounts,
                ],
            }
        ],
        "volumes": [
            {"name": "agent", "secret": {"secretName": name, "defaultMode": 0o400}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", **limit}},
            *runs,
        ],
    }
    if config.service_account is not None:
        spec["serviceAccountName"] = config.service_account
    if config.pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": config.pull_secret}]
    if config.priority_class is not None:
        spec["priorityClassName"] = config.priority_class
    return spec | _where(config, group)


def _resources(config: KubernetesConfig, group: HostGroup) -> Object:
    """Requests place a pod. Only GPUs are limited: the config's memory is for placement."""
    requests = {"cpu": str(group.cpus)}
    if group.memory_gb is not None:
        requests["memory"] = _bytes(group.memory_gb)
    found: Object = {"requests": requests}
    if group.gpus:
        found["limits"] = {config.gpu_resource: str(group.gpus)}
        requests[config.gpu_resource] = str(group.gpus)
    return found


def _where(config: KubernetesConfig, group: HostGroup) -> Object:
    """Nodes for a group: a label ``name=value`` is a label of nodes with that value, ``name`` one with any."""
    selector: Mapping[str, str] = {
        **dict(each.split("=", 1) for each in group.labels if "=" in each),
        **(config.spot_labels if group.spot else {}),
    }
    found: Object = {"nodeSelector": dict(selector)} if selector else {}
    if there := [each for each in group.labels if "=" not in each]:
        terms = [{"matchExpressions": [{"key": key, "operator": "Exists"} for key in there]}]
        found["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
            }
        }
    taints = [*config.tolerations, *(config.spot_labels if group.spot else ())]
    if group.gpus:
        taints.append(config.gpu_resource)
    if taints:
        found["tolerations"] = [{"key": key, "operator": "Exists"} for key in dict.fromkeys(taints)]
    return found


def _bytes(gigabytes: float) -> str:
    return str(round(gigabytes * 1e9))
