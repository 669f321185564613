"""A manifest of a whole run: a job that is its launcher, and what that needs. Pure but for the files of the config."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from astraflow_contrib_kubernetes.config import KubernetesConfig
from astraflow_contrib_kubernetes.objects import (
    Object,
    dns_name,
    labels,
    restricted,
    run_volume,
)
from astraflow_core.errors import UserError

CONFIG = "/etc/astraflow"
TRIES = 6
"""How often the launcher is restarted, for example after its node was lost; a run continues where it was."""
SIZE = "100Gi"
END_S = 300
"""Seconds that a run which is taken away may take to end in order."""
_RULES = (
    ("batch", ["jobs"], ["create", "delete"]),
    ("", ["secrets"], ["create", "delete"]),
    ("", ["pods", "events"], ["list"]),
    ("policy", ["poddisruptionbudgets"], ["create", "delete"]),
)
"""What the launcher does, and no more."""


def run_manifest(
    config: KubernetesConfig, run: str, program: Sequence[str], arguments: Sequence[str]
) -> str:
    """YAML for ``kubectl apply -f``. ``arguments``: the config's file, and what follows it. Without ``claim`` and
    ``volume`` there is a new claim. :class:`UserError` if the config extends files of other folders."""
    name = dns_name(run)
    new_claim = config.claim is None and config.volume is None
    if new_claim:
        config = config.model_copy(update={"claim": name})
        arguments = [*arguments, "--set", f"launcher.claim={name}"]
    file, *options = arguments
    files = dict(_files(Path(file)))
    made = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        _role(name),
        _binding(name, config.namespace),
        *([_claim(name)] if new_claim else []),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": files,
        },
        _job(config, run, name, [*program[1:], "run"], [f"{CONFIG}/{Path(file).name}", *options]),
    ]
    marks = labels(run, "manifest")
    for each in made:
        each["metadata"]["labels"] = marks
        if config.namespace is not None:
            each["metadata"]["namespace"] = config.namespace
    return str(yaml.safe_dump_all(made, sort_keys=False, width=120))


def _files(file: Path) -> Iterator[tuple[str, str]]:
    """The config, and what it extends: name → text."""
    folder, seen = file.parent, set[str]()
    while file.name not in seen:
        text = file.read_text(encoding="utf-8")
        seen.add(file.name)
        yield file.name, text
        extends = tomllib.loads(text).get("extends")
        if extends is None:
            return
        if Path(extends).name != extends:
            raise UserError(
                f"{file} extends {extends}, which is not in the same folder, and a config map has no folders: copy it there"
            )
        file = folder / extends


def _role(name: str) -> Object:
    rules = [
        {"apiGroups": [group], "resources": resources, "verbs": verbs}
        for group, resources, verbs in _RULES
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": rules,
    }


def _binding(name: str, namespace: str | None) -> Object:
    subject = {"kind": "ServiceAccount", "name": name}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [subject if namespace is None else {**subject, "namespace": namespace}],
    }


def _claim(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": SIZE}},
        },
    }


_SCRIPT = """newest=$(ls -t {runs}/*/config.toml 2>/dev/null | head -n 1)
if [ -n "$newest" ]; then
    exec {program} --resume "${{newest%/config.toml}}" --no-live
fi
exec {program} {arguments} --set run.directory={runs} --no-live
"""


def _job(
    config: KubernetesConfig, run: str, name: str, command: Sequence[str], arguments: Sequence[str]
) -> Object:
    """The launcher. Started again, it resumes the newest run of its folder."""
    volumes, mounts = run_volume(config)
    program = [config.python or config.agent_python, *command]
    script = _SCRIPT.format(
        program=shlex.join(program),
        arguments=shlex.join(arguments),
        runs=shlex.quote(f"{config.mount.rstrip('/')}/{name}"),
    )
    pod: Object = {
        "restartPolicy": "Never",
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": END_S,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": "launcher",
                "image": config.image,
                "command": ["/bin/sh", "-c", script],
                "workingDir": config.directory or config.mount,
                "env": [
                    _from_pod("ASTRAFLOW_POD_NAME", "metadata.name"),
                    _from_pod("ASTRAFLOW_POD_UID", "metadata.uid"),
                ],
                "resources": {"requests": {"cpu": "500m", "memory": "1G"}},
                "securityContext": restricted(),
                "volumeMounts": [
                    {"name": "config", "mountPath": CONFIG, "readOnly": True},
                    *mounts,
                ],
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": name}}, *volumes],
    }
    if config.pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": config.pull_secret}]
    marks = labels(run, "manifest")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": TRIES,
            "template": {"metadata": {"labels": marks}, "spec": pod},
        },
    }


def _from_pod(variable: str, path: str) -> Object:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
