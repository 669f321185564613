"""docs/modules.md: the modules that a plugin may import; every other one is private."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import dev
from workspace import Import, tree_of

from pages.markdown import GENERATED, code, page, prose, table

_PLUGINS = ("plugins", "contrib")
PUBLIC: dict[str, tuple[str, ...]] = {
    "Every plugin": (
        "astraflow_core",
        "astraflow_core.component",
        "astraflow_core.hookspecs",
        "astraflow_core.errors",
        "astraflow_core.types",
        "astraflow_core.types.*",
        "astraflow_core.protocols.*",
        "astraflow_core.config.models",
        "astraflow_core.config.or_none",
        "astraflow_core.config.environments",
        "astraflow_core.seeds",
        "astraflow_core.shared_secret",
        "astraflow_wire.host.disk",
        "astraflow_wire.decoding",
        "astraflow_wire.host.private_folder",
        "astraflow_wire.images.parts",
    ),
    "Components that are made of others": ("astraflow_core.nested",),
    "Data policies": ("astraflow_policy_tools.*",),
    "Engines": (
        "astraflow_serving.*",
        "astraflow_wire.images.files",
        "astraflow_wire.images.model",
        "astraflow_wire.model_files.model_digest",
        "astraflow_wire.model_files.tensor_file",
    ),
    "Trainers": ("astraflow_training.*", "astraflow_torch_training.*"),
    "Transports": (
        "astraflow_weights.connection_keys",
        "astraflow_weights.snapshot",
        "astraflow_weights.fetch.landing",
        "astraflow_weights.publish.store",
        "astraflow_weights.failures",
        "astraflow_weights.addresses",
        "astraflow_weights.announced",
        "astraflow_weights.fetch.client",
        "astraflow_weights.publish.publisher",
        "astraflow_weights.fetch.receiver",
        "astraflow_weights.fetch.recycled_file",
        "astraflow_weights.shards.publisher",
        "astraflow_weights.fetch.shard_download",
        "astraflow_weights.direct.publisher",
        "astraflow_weights.direct.receiver",
        "astraflow_weights.direct.delivery_server",
        "astraflow_weights.buckets",
        "astraflow_weights.fetch.probe",
        "astraflow_torch_weights.*",
        "astraflow_wire.http.connection_limits",
        "astraflow_wire.http.listening",
    ),
    "Services of your own": (
        "astraflow_wire.http.raas_client",
        "astraflow_wire.http.client",
        "astraflow_wire.http.server",
        "astraflow_wire.http.auth",
        "astraflow_wire.messages",
        "astraflow_wire.http.recovery",
        "astraflow_wire.http.drafts",
        "astraflow_wire.frames",
        "astraflow_wire.completions",
        "astraflow_wire.groups",
        "astraflow_wire.batches",
    ),
    "Launchers": ("astraflow_launching.*", "astraflow_wire.http.listening"),
    "Commands": (
        "astraflow_runtime.cli",
        "astraflow_runtime.cli.helping",
        "astraflow_runtime.cli.output",
        "astraflow_runtime.cli.run_directory",
    ),
    "Viewers of rollouts": (
        "astraflow_runtime.rollouts.reader",
        "astraflow_runtime.rollouts.filters",
        "astraflow_runtime.rollouts.records",
    ),
    "Trackers": (
        "astraflow_trackers.keys",
        "astraflow_trackers.records",
    ),
    "Workflows in which agents sample through the gateway": (
        "astraflow_gateway.server",
        "astraflow_gateway.listening",
        "astraflow_gateway.episode",
        "astraflow_gateway.conversation",
        "astraflow_gateway.requests",
        "astraflow_gateway.rewards",
        "astraflow_gateway.listening_keys",
        "astraflow_gateway.dialects.bodies",
        "astraflow_gateway.chat.format",
        "astraflow_gateway.chat.messages",
        "astraflow_wire.host.sockets",
        "astraflow_wire.host.parent",
        "astraflow_wire.host.worker_channel",
    ),
    "Environments": (
        "astraflow_environments.actions",
        "astraflow_environments.tasks",
    ),
    "Workflows that play environments": (
        "astraflow_environments.keys",
        "astraflow_environments.pool",
    ),
    "Workflows and rewards that run programs": (
        "astraflow_wire.host.reaped_processes",
        "astraflow_wire.host.reaper",
        "astraflow_sandbox.code_runner",
        "astraflow_sandbox.config",
        "astraflow_sandbox.subprocess_runner",
    ),
    "Tests": (
        "astraflow_testing.conformance.*",
        "astraflow_testing.scripted_policies",
        "astraflow_testing.stamping",
        "astraflow_testing.weight_faults",
        "astraflow_testing.damage",
        "astraflow_testing.runs",
        "astraflow_testing.cluster_runs",
        "astraflow_testing.debian",
        "astraflow_testing.table",
        "astraflow_tiny_model.folder",
        "astraflow_tiny_model.vision",
        "astraflow_testing.tiny_decoder",
        "astraflow_testing.small_disk",
    ),
    "Programs that start runs": ("astraflow_runtime",),
}
"""Who needs them → modules; ``.*`` stands for those of a package whose names begin with no underscore."""

PROVISIONAL = (
    "astraflow_runtime.cli",
    "astraflow_testing.cluster_runs",
    "astraflow_testing.damage",
    "astraflow_testing.debian",
    "astraflow_testing.small_disk",
    "astraflow_testing.tiny_decoder",
    "astraflow_testing.weight_faults",
)
"""Modules whose names may change with a minor version: a command needs the runtime of its own version, and these parts of
the testing kit are for the tests of this repository first."""


@cache
def public_modules() -> frozenset[str]:
    """All of them."""
    return frozenset(module for entries in PUBLIC.values() for module in _expanded(entries))


def public_modules_table() -> str:
    """The same for the command `plugin`: the public modules, and the packages whose other modules are private."""
    packages = [p for p in dev.packages() if p.path.relative_to(dev.ROOT).parts[0] not in _PLUGINS]
    found = {
        "modules": sorted(public_modules()),
        "packages": sorted(package.name.replace("-", "_") for package in packages),
    }
    return json.dumps(found, indent=1) + "\n"


def reached(item: Import) -> list[str]:
    """The modules that an import reaches: ``from package import module`` means the module."""
    inside = [f"{item.module}.{name}" for name in item.names]
    return [module for module in inside if file_of(module)] or [item.module]


def modules() -> str:
    """The page."""
    parts = []
    for group, entries in PUBLIC.items():
        rows = [(code(module), _about(module)) for module in _expanded(entries)]
        parts += [f"## {group}", table(("module", "what it has"), rows)]
    return page(
        "# Public modules",
        GENERATED,
        """
The modules of the core and its libraries that a plugin, a service of your own and their tests may import, grouped by who needs
them. In these, names without a leading underscore keep their meaning as the
[version of the plugin API](../CONTRIBUTING.md#versions) says. Every other module is private and may change with any
release. [Public names](api.md) lists the names. The plugins of this repository import no other modules, except the commands below `contrib/commands/`: these look into
the services, and each needs the runtime of its own version.
""",
        *parts,
    )


def _expanded(entries: tuple[str, ...]) -> list[str]:
    found = []
    for entry in entries:
        package = entry.removesuffix(".*")
        names = sorted(f.stem for f in _path(package).glob("[!_]*.py")) if entry != package else ()
        found += [f"{package}.{name}" for name in names] or [entry]
    return found


def _path(module: str) -> Path:
    """Where a module of this repository would be, without suffix."""
    top = module.partition(".")[0]
    return _homes().get(top, dev.ROOT).joinpath("src", *module.split("."))


@cache
def _homes() -> dict[str, Path]:
    """Import name of a distribution → its folder."""
    return {p.name.replace("-", "_"): p.path for p in dev.packages()}


def owner_of(module: str) -> str:
    """The distribution that has a module of this repository."""
    top = module.partition(".")[0]
    return top.replace("_", "-")


def is_provisional(module: str) -> bool:
    """Whether its names may change with a minor version."""
    return any(module == p or module.startswith(f"{p}.") for p in PROVISIONAL)


def file_of(module: str) -> Path | None:
    """The file of a module of this repository, if it exists."""
    path = _path(module)
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _about(module: str) -> str:
    file = file_of(module)
    if file is None:
        raise dev.Failure(f"scripts/pages/public_modules.py lists {module}, which does not exist")
    first = (ast.get_docstring(tree_of(file)) or "").partition("\n\n")[0]
    return prose(re.sub(r"\s+", " ", first))
