"""The API server of a cluster, by the official client."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client, config
from kubernetes.client.rest import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from astraflow_contrib_kubernetes.objects import Object
from astraflow_core.errors import PreflightError, RunFailed

REQUEST_S = 30.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NOT_FOUND = 404


class ApiServer:
    """One namespace, as the kubeconfig's ``context`` sees it, or the pod in which this process runs. Every call has a
    deadline; a refusal is a :class:`RunFailed` with what the server says."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        inside = context is None and "KUBERNETES_SERVICE_HOST" in os.environ
        try:
            if inside:
                settings = client.Configuration()
                config.load_incluster_config(client_configuration=settings)
                connection = client.ApiClient(settings)
            else:
                connection = config.new_client_from_config(_kubeconfig(), context)
        except (ConfigException, OSError) as error:
            raise PreflightError(
                f"no Kubernetes cluster can be reached: {error}; set KUBECONFIG, name a context in [launcher] context, or "
                "start the run in a pod"
            ) from error
        self.namespace = namespace or _namespace(inside, context)
        self.host = str(urlsplit(connection.configuration.host).hostname)
        self._connection = connection
        self._jobs = client.BatchV1Api(connection)
        self._core = client.CoreV1Api(connection)
        self._policy = client.PolicyV1Api(connection)

    def close(self) -> None:
        """Hang up; a later call connects again."""
        pools = self._connection.rest_client.pool_manager.pools
        for key in pools.keys():  # noqa: SIM118 (of urllib3, which refuses to be iterated)
            pools[key].close()
        self._connection.close()

    def create(self, made: Object) -> str:
        """Create a job, secret or budget; its uid."""
        calls = {
            "Job": self._jobs.create_namespaced_job,
            "Secret": self._core.create_namespaced_secret,
            "PodDisruptionBudget": self._policy.create_namespaced_pod_disruption_budget,
        }
        answer = self._ask(calls[made["kind"]], body=made)
        return str(answer["metadata"]["uid"])

    def delete(self, kind: str, name: str) -> None:
        """Delete an object with what it owns; one that is gone is no error."""
        calls = {
            "Job": self._jobs.delete_namespaced_job,
            "Secret": self._core.delete_namespaced_secret,
            "PodDisruptionBudget": self._policy.delete_namespaced_pod_disruption_budget,
        }
        try:
            self._ask(calls[kind], name=name, propagation_policy="Background")
        except RunFailed as error:
            if getattr(error.__cause__, "status", None) != NOT_FOUND:
                raise

    def pods(self, selector: str) -> list[Object]:
        """Pods with these labels."""
        found = self._ask(self._core.list_namespaced_pod, label_selector=selector)
        return list(found["items"])

    def last_event(self, name: str) -> str:
        """What the cluster said last about an object; empty if nothing."""
        found = self._ask(
            self._core.list_namespaced_event, field_selector=f"involvedObject.name={name}"
        )
        events = sorted(
            found["items"], key=lambda event: str(event["metadata"].get("creationTimestamp"))
        )
        return str(events[-1].get("message") or "") if events else ""

    def _ask(self, call: Any, **words: Any) -> Any:
        try:
            answer = call(
                namespace=self.namespace,
                _preload_content=False,
                _request_timeout=REQUEST_S,
                **words,
            )
            return json.loads(answer.data)
        except ApiException as error:
            raise RunFailed(f"Kubernetes refused it: {_said(error)}") from error
        except (HTTPError, OSError, ValueError) as error:
            raise RunFailed(f"Kubernetes did not answer: {error}") from error


def _kubeconfig() -> str | None:
    """As KUBECONFIG names it now; the client reads that variable when it is imported."""
    return os.environ.get("KUBECONFIG") or None


def _namespace(inside: bool, context: str | None) -> str:
    if inside:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    contexts, current = config.list_kube_config_contexts(_kubeconfig())
    chosen = next((each for each in contexts if each["name"] == context), current)
    return str(chosen["context"].get("namespace") or "default")


def _said(error: ApiException) -> str:
    """The message of a Status, which names the object; never the body of a request."""
    try:
        message = json.loads(error.body or "")["message"]
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"
    return f"{message} ({error.status})"
