"""``transport.use = "auto"``: asks the plugin that chooses, and puts its answer in the place of the question."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel

from astraflow_core.catalog import Catalog, Selected
from astraflow_core.component import Kind
from astraflow_core.config.load import LoadedConfig, run_info
from astraflow_core.config.models import RunConfig
from astraflow_core.config.rendering import shown
from astraflow_core.config.tables import AUTO
from astraflow_core.errors import ConfigError
from astraflow_core.installed.distributions import index
from astraflow_core.types import Announcement, TransportChoice, TransportEnds
from astraflow_runtime.hooks import Hooks

Components = dict[str, tuple[Selected, BaseModel | None]]
_HOOK = "astraflow_choose_transport"
_LOOPBACK = ("localhost", "::1")
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound)


@dataclass(frozen=True, slots=True)
class Joined:
    """A run that is on already: the newest version of each policy that has one, and the secret that its
    components share."""

    announced: Mapping[str, Announcement]
    token: str = field(repr=False)


Joining = Callable[[RunConfig], Joined]
"""Asks a run that is on already, by its config; called if a transport is to be chosen."""


def choose_transports(loaded: LoadedConfig, joining: Joining | None = None) -> LoadedConfig:
    """The same with every transport named and what was selected among its components, and a note on each choice ahead
    of the others. Raises :class:`ConfigError` if no plugin chooses."""
    config, catalog, components = loaded.config, loaded.catalog, dict(loaded.components)
    open_policies = [name for name, p in config.policies.items() if p.transport.use == AUTO]
    if not open_policies:
        return loaded
    run = run_info(config, Path(config.run.directory) / config.run.name)
    hooks = Hooks.for_run(catalog, config)
    joined = joining(config) if joining else Joined({}, "")
    policies, notes = dict(config.policies), []
    for name in open_policies:
        policy, path = policies[name], f"policies.{name}.transport"
        ends = replace(
            _ends(config, catalog, components, name),
            announced=joined.announced.get(name),
            token=joined.token,
        )
        chosen = hooks.choose_transport(run, policy.engine.use, policy.trainer.use, ends)
        if isinstance(chosen, str):
            chosen = TransportChoice(chosen, "a plugin of the run chose it")
        if not isinstance(chosen, TransportChoice):
            names = ", ".join(entry.qualified for entry in catalog.components("transport"))
            published = sorted(index().hooks.get(_HOOK, {}).values())
            known = map(index().how_to_install, published)
            problem = (
                f"{path}.use: 'auto' needs a plugin that chooses the transport (received {shown(chosen)}); "
                f"install one ({' or '.join(known) or 'none is known'}), or name one of the "
                f"installed transports: {names or 'none'}"
            )
            raise ConfigError([problem], loaded.label)
        table = type(policy.transport)(use=chosen.use, **chosen.options)
        components[path] = catalog.validate("transport", table, path)
        policies[name] = policy.model_copy(update={"transport": table})
        notes.append(f"{path}: 'auto' chose {chosen.use!r}, because {chosen.why}")
    chosen_config = config.model_copy(update={"policies": policies})
    return replace(
        loaded, config=chosen_config, components=components, notes=(*notes, *loaded.notes)
    )


def _ends(
    config: RunConfig, catalog: Catalog, components: Components, policy: str
) -> TransportEnds:
    def flags(path: str) -> frozenset[str]:
        found = components.get(path)
        return found[0].component.capabilities if found else frozenset()

    local = "local" in flags("launcher")
    host = config.dataflow.host
    inside = host in _LOOPBACK or host.startswith("127.")
    reached = socket.gethostname() if host in _EVERY_ADDRESS else host
    return TransportEnds(
        same_host=local and inside,
        shared_devices=config.run.colocated,
        host=reached if local and not inside else None,
        engine=flags(f"policies.{policy}.engine"),
        trainer=flags(f"policies.{policy}.trainer"),
        transports={
            entry.component.name: entry.component.capabilities
            for entry in catalog.components(Kind.TRANSPORT)
            if config.tls is None or "plain_text" not in entry.component.capabilities
        },
        model_bytes=_tensor_bytes(Path(config.policies[policy].model).expanduser()),
    )


def _tensor_bytes(model: Path) -> int | None:
    """The size of the safetensors files of a local folder."""
    sizes = [file.stat().st_size for file in model.glob("*.safetensors") if file.is_file()]
    return sum(sizes) if sizes else None
