"""A stand-in for a cluster: an API server for what the launcher asks, a scheduler, and nodes that run pods as processes.

Every object is checked by the published schemas. A pod waits until a node has room for it and until its secret is there; the
paths at which it mounts its secret are replaced on its command line, since its process is on this host.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from published_schemas import VERSIONS, complaints

Object = dict[str, Any]

TOKEN = "of-a-service-account"
TICK_S = 0.05
_PATH = re.compile(
    r"/(?:api/v1|apis/(?:batch|policy)/v1)/namespaces/(?P<namespace>[a-z0-9-]+)/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?"
)
_KINDS = {
    "jobs": "Job", "secrets": "Secret", "poddisruptionbudgets": "PodDisruptionBudget", "pods": "Pod", "events": "Event",
}  # fmt: skip
ALLOWED = {
    ("jobs", "POST"), ("jobs", "DELETE"), ("secrets", "POST"), ("secrets", "DELETE"), ("pods", "GET"), ("events", "GET"),
    ("poddisruptionbudgets", "POST"), ("poddisruptionbudgets", "DELETE"),
}  # fmt: skip
"""What the role of a generated manifest allows."""


@dataclass
class Node:
    """``down``: the machine is gone, with its processes."""

    name: str
    labels: dict[str, str]
    cpus: float = 4.0
    memory: int = 4_000_000_000
    gpus: int = 2
    taints: tuple[str, ...] = ()
    down: bool = False


@dataclass
class _RunningPod:
    process: subprocess.Popen[bytes]
    folder: Path
    kill_at: float | None = None


@dataclass
class StandInCluster:
    """``folder`` has the kubeconfig, and what pods mount and print."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    images: frozenset[str] = frozenset({"astraflow:test"})
    namespace: str = "lab"
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    refuse: str = ""
    _running: dict[str, _RunningPod] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _over: threading.Event = field(default_factory=threading.Event)
    _count: Iterator[int] = field(default_factory=itertools.count)

    @property
    def kubeconfig(self) -> Path:
        """What KUBECONFIG names."""
        return self.folder / "kubeconfig"

    def named(self, kind: str) -> list[str]:
        """Names of the objects of a kind."""
        with self._lock:
            return sorted(name for each, name in self.objects if each == kind)

    def pod_of(self, job: str) -> Object:
        """The pod of a job."""
        with self._lock:
            (found,) = [
                each
                for (kind, _), each in self.objects.items()
                if kind == "pods" and each["metadata"]["labels"]["job-name"] == job
            ]
            return found

    def pid_of(self, job: str) -> int:
        """The process of a job's pod."""
        return self._running[self.pod_of(job)["metadata"]["name"]].process.pid

    def fail_node(self, name: str) -> None:
        """Its processes are killed; the cluster notices later that its pods have ended."""
        with self._lock:
            self.nodes[name].down = True
            for pod, running in self._running.items():
                if self.objects["pods", pod]["spec"].get("nodeName") == name:
                    os.killpg(running.process.pid, signal.SIGKILL)

    def evict(self, job: str) -> None:
        """As the API server does to drain a node: the pod is deleted in its grace period."""
        with self._lock:
            self._end_pod(self.pod_of(job))

    # --- requests ------------------------------------------------------------------------------

    def answer(self, method: str, url: str, body: Object | None) -> tuple[int, Object]:
        """Status and body of an answer."""
        found = _PATH.fullmatch(urlsplit(url).path)
        if found is None or found["namespace"] != self.namespace:
            return _status(404, f"the server could not find {url}")
        kind, name = found["kind"], found["name"]
        with self._lock:
            self.asked.append((kind, method))
            if (kind, method) not in ALLOWED:
                return _status(403, f'{kind} is forbidden: User "launcher" cannot {method} {kind}')
            if method == "POST":
                return self._create(kind, body or {})
            if method == "DELETE":
                return self._delete(kind, name)
            return self._listed(kind, parse_qs(urlsplit(url).query))

    def _create(self, kind: str, made: Object) -> tuple[int, Object]:
        wrong = [each for version in VERSIONS for each in complaints(made, version)]
        if made.get("kind") != _KINDS[kind] or wrong:
            return _status(422, f"{_KINDS[kind]} is invalid: {'; '.join(wrong)}")
        if self.refuse:
            return _status(403, self.refuse)
        name = made["metadata"]["name"]
        if len(name) > 63 or (kind, name) in self.objects:
            return _status(409, f"{kind} {name!r} already exists, or its name is too long")
        for owner in made["metadata"].get("ownerReferences", ()):
            if owner["kind"] == "Job" and self._uid("jobs", owner["name"]) != owner["uid"]:
                return _status(422, f"{name} has an owner that is not there")
        made["metadata"]["uid"] = str(uuid.uuid4())
        self.objects[kind, name] = made
        if kind == "jobs":
            self._pod_for(made)
        return 201, made

    def _uid(self, kind: str, name: str) -> str:
        return str(self.objects.get((kind, name), {"metadata": {"uid": ""}})["metadata"]["uid"])

    def _pod_for(self, job: Object) -> None:
        template = json.loads(json.dumps(job["spec"]["template"]))
        name = f"{job['metadata']['name']}-{next(self._count):05x}"
        marks = {**template["metadata"]["labels"], "job-name": job["metadata"]["name"]}
        self.objects["pods", name] = {
            "metadata": {"name": name, "labels": marks},
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }

    def _delete(self, kind: str, name: str) -> tuple[int, Object]:
        gone = self.objects.pop((kind, name), None)
        if gone is None:
            return _status(404, f'{kind} "{name}" not found')
        if kind == "jobs":
            self._end_pod(self.pod_of(name))
            uid = gone["metadata"]["uid"]
            owned = [
                key
                for key, each in self.objects.items()
                if uid in [o["uid"] for o in each["metadata"].get("ownerReferences", ())]
            ]
            for key in owned:
                del self.objects[key]
        return 200, {"kind": "Status", "status": "Success"}

    def _end_pod(self, pod: Object) -> None:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        running = self._running.get(pod["metadata"]["name"])
        if running is not None and running.kill_at is None:
            running.kill_at = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
            running.process.send_signal(signal.SIGTERM)

    def _listed(self, kind: str, query: dict[str, list[str]]) -> tuple[int, Object]:
        wanted = dict(each.split("=") for each in query.get("labelSelector", []))
        items = [
            each
            for (of, _), each in self.objects.items()
            if of == kind and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        return 200, {"kind": f"{_KINDS[kind]}List", "apiVersion": "v1", "items": items}

    # --- nodes ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Place, start, watch and remove pods."""
        while not self._over.wait(TICK_S):
            with self._lock:
                for (kind, name), each in list(self.objects.items()):
                    if kind == "pods":
                        self._look(name, each)

    def _look(self, name: str, pod: Object) -> None:
        running = self._running.get(name)
        if running is None and "deletionTimestamp" in pod["metadata"]:
            del self.objects["pods", name]
        elif running is None and pod["status"]["phase"] == "Pending":
            self._try(name, pod)
        elif running is not None:
            if running.kill_at is not None and time.monotonic() > running.kill_at:
                running.process.kill()
            if (code := running.process.poll()) is not None:
                self._ended(name, pod, code)

    def _try(self, name: str, pod: Object) -> None:
        spec, status = pod["spec"], pod["status"]
        container = spec["containers"][0]
        reasons = [(node, self._lacks(node, spec)) for node in self.nodes.values()]
        fits = [node for node, why in reasons if not why]
        if not fits:
            text = f"0/{len(reasons)} nodes are available: {'; '.join(why for _, why in reasons)}"
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": text,
                }
            ]
            return
        waiting = ""
        if container["image"] not in self.images:
            waiting = "ImagePullBackOff"
        secret = self.objects.get(("secrets", spec["volumes"][0]["secret"]["secretName"]))
        if waiting or secret is None:
            state = {
                "waiting": {"reason": waiting or "ContainerCreating", "message": container["image"]}
            }
            pod["status"] = {"phase": "Pending", "containerStatuses": [{"state": state}]}
            return
        node = max(fits, key=lambda each: sum(self._left(each)[:2]))
        spec["nodeName"] = node.name
        self._start(name, pod, node, secret)

    def _start(self, name: str, pod: Object, node: Node, secret: Object) -> None:
        container = pod["spec"]["containers"][0]
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        for file, text in secret["data"].items():
            handle = os.open(folder / file, os.O_WRONLY | os.O_CREAT, 0o400)
            with os.fdopen(handle, "wb") as output:
                output.write(base64.b64decode(text))
        (where,) = (m["mountPath"] for m in container["volumeMounts"] if m["name"] == "agent")
        words = [*container["command"], *container["args"]]
        limits = container["resources"].get("limits", {})
        gpus = ",".join(map(str, range(int(limits.get("nvidia.com/gpu", "0")))))
        environment = {
            **os.environ,
            "NODE": node.name,
            **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [word.replace(where, str(folder)) for word in words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = _RunningPod(process, folder)
        pod["status"] = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "containerStatuses": [{"state": {"running": {}}}],
        }

    def _ended(self, name: str, pod: Object, code: int) -> None:
        running = self._running.pop(name)
        shutil.rmtree(running.folder)
        node = self.nodes[pod["spec"]["nodeName"]]
        state = {
            "terminated": {
                "exitCode": code if code >= 0 else 128 - code,
                "reason": "Completed" if code == 0 else "Error",
            }
        }
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"state": state}],
        }
        if node.down:
            pod["status"] |= {"reason": "NodeLost", "message": f"Node {node.name} is unresponsive"}
        if "deletionTimestamp" in pod["metadata"]:
            del self.objects["pods", name]

    def _left(self, node: Node) -> tuple[float, int, int]:
        """The CPUs, memory and GPUs of a node that no pod has requested."""
        cpus, memory, gpus = node.cpus, node.memory, node.gpus
        for name in self._running:
            spec = self.objects["pods", name]["spec"]
            if spec["nodeName"] == node.name:
                asked = spec["containers"][0]["resources"]["requests"]
                cpus -= float(asked.get("cpu", "0"))
                memory -= int(asked.get("memory", "0"))
                gpus -= int(asked.get("nvidia.com/gpu", "0"))
        return cpus, memory, gpus

    def _lacks(self, node: Node, spec: Object) -> str:
        if node.down:
            return "node is down"
        if not spec.get("nodeSelector", {}).items() <= node.labels.items():
            return "node didn't match Pod's node affinity/selector"
        terms = spec.get("affinity", {}).get("nodeAffinity", {})
        for term in terms.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
            "nodeSelectorTerms", ()
        ):
            if any(each["key"] not in node.labels for each in term["matchExpressions"]):
                return "node didn't match Pod's node affinity/selector"
        if set(node.taints) - {each["key"] for each in spec.get("tolerations", ())}:
            return "node had an untolerated taint"
        asked = spec["containers"][0]["resources"]["requests"]
        wanted = (
            float(asked.get("cpu", "0")),
            int(asked.get("memory", "0")),
            int(asked.get("nvidia.com/gpu", "0")),
        )
        for what, left, needed in zip(
            ("cpu", "memory", "nvidia.com/gpu"), self._left(node), wanted, strict=True
        ):
            if needed > left:
                return f"Insufficient {what}"
        return ""

    def close(self) -> None:
        """Kill everything."""
        self._over.set()
        with self._lock:
            for running in self._running.values():
                running.process.kill()
                running.process.wait()


def _status(code: int, message: str) -> tuple[int, Object]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": code,
    }


@contextmanager
def stand_in_cluster(folder: Path) -> Iterator[StandInCluster]:
    """Nodes ``one`` and ``two`` with four cores, 4 GB and two GPUs each, and ``cheap``, a spot node."""
    nodes = [
        Node("one", {"kubernetes.io/hostname": "one", "disk": "fast"}),
        Node("two", {"kubernetes.io/hostname": "two"}),
        Node("cheap", {"spot": "true"}, taints=("spot",)),
    ]
    cluster = StandInCluster(folder, {node.name: node for node in nodes})

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                code, answer = _status(401, "Unauthorized")
            else:
                code, answer = cluster.answer(self.command, self.path, body)
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, format: str, *words: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    server.daemon_threads = True
    cluster.kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
                ],
                "users": [{"name": "launcher", "user": {"token": TOKEN}}],
                "contexts": [
                    {
                        "name": "here",
                        "context": {
                            "cluster": "c",
                            "user": "launcher",
                            "namespace": cluster.namespace,
                        },
                    }
                ],
                "current-context": "here",
            }
        )
    )
    threads = [
        threading.Thread(target=each, daemon=True) for each in (server.serve_forever, cluster.run)
    ]
    for thread in threads:
        thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        cluster.close()
