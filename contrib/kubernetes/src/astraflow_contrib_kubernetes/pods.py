"""What the status of a pod says. Pure: no API server is asked."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow_contrib_kubernetes.objects import Object

_HOPELESS = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
)
"""Waiting reasons of a container that will not start without intervention."""


def job_of(pod: Object) -> str:
    """The name of the job that made it."""
    marks = pod["metadata"].get("labels", {})
    return str(marks.get("batch.kubernetes.io/job-name") or marks.get("job-name") or "")


def is_running(pod: Object) -> bool:
    """Whether its containers have started and it was not deleted."""
    return _phase(pod) == "Running" and "deletionTimestamp" not in pod["metadata"]


def has_ended(pod: Object) -> bool:
    """Whether all its containers have."""
    return _phase(pod) in ("Succeeded", "Failed")


def hopeless(pod: Object) -> str:
    """Why a pod that waits will never run; empty if it may."""
    for state in _states(pod):
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in _HOPELESS:
            return _joined(waiting["reason"], waiting.get("message"))
    return end_of(pod) if has_ended(pod) else ""


def reason_to_wait(pod: Object) -> str:
    """What a pod waits for, as the scheduler or the node says."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return _joined(condition.get("reason"), condition.get("message"))
    for state in _states(pod):
        if waiting := state.get("waiting"):
            return _joined(waiting.get("reason"), waiting.get("message"))
    return "it has not started"


def end_of(pod: Object) -> str:
    """How a pod ended: ``"pod a-0 ended: Evicted: The node was low on resource: memory"``."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if status.get("reason"):
        return f"pod {name} ended: {_joined(status['reason'], status.get('message'))}"
    for state in _states(pod):
        if ended := state.get("terminated"):
            reason = ended.get("reason") or "Error"
            return f"pod {name} ended: {reason}, exit code {ended.get('exitCode')}"
    return f"pod {name} ended"


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _states(pod: Object) -> Iterator[Object]:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        yield container.get("state") or {}


def _joined(reason: str | None, message: str | None) -> str:
    return ": ".join(each for each in (reason, message) if each)
