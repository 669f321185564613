"""The lifecycle hooks as typed methods: the one call site of each.

Active are the plugins that the run names, by a component or in ``[plugins] enable``, and the core's own.
An exception in a hook is not swallowed: a run must not go on half observed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.discovery import CORE, Plugin, plugin_manager
from astraflow_core.errors import PluginError, PreflightError

if TYPE_CHECKING:
    from astraflow_core.catalog import Catalog
    from astraflow_core.config.models import RunConfig
    from astraflow_core.types import Batch, RunInfo, TransportChoice, TransportEnds

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters at least: not a drive


class Hooks:
    """Calls the lifecycle hooks of the ``active`` plugins; model references go to every healthy one."""

    def __init__(self, active: Iterable[Plugin], resolvers: Iterable[Plugin] = ()) -> None:
        self.active = tuple(active)
        self._resolvers = tuple(resolvers)
        self._manager = plugin_manager()
        for plugin in self.active:
            self._manager.register(plugin.module, name=plugin.name)
        self._hook: Any = self._manager.hook

    @classmethod
    def for_run(cls, catalog: Catalog, config: RunConfig) -> Hooks:
        """The hooks of a validated run."""
        from astraflow_core.config.tables import AUTO, component_tables

        named = {CORE, *config.plugins.enable}
        for place in component_tables(config):
            if place.table.use != AUTO:
                named.add(catalog.select(place.kind, place.table.use).plugin)
            elif not any(_chooses(catalog, name) for name in named):
                named.update(p.name for p in catalog.plugins if p.name == AUTO and p.healthy)
        named.discard("")
        return cls((catalog.plugin(name) for name in sorted(named)), _resolvers(catalog))

    @classmethod
    def for_models(cls, catalog: Catalog) -> Hooks:
        """Only what :meth:`resolve_model` needs, before a run is known."""
        return cls((), _resolvers(catalog))

    def run_started(self, run: RunInfo) -> None:
        """Work of this process is about to begin."""
        self._hook.astraflow_run_started(run=run)

    def run_ended(self, run: RunInfo, error: BaseException | None) -> None:
        """Work of this process has ended, by ``error`` if there is one."""
        self._hook.astraflow_run_ended(run=run, error=error)

    def step_ended(self, run: RunInfo, step: int, metrics: Mapping[str, float]) -> None:
        """A trainer (rank 0) finished an update."""
        self._hook.astraflow_step_ended(run=run, step=step, metrics=metrics)

    def weights_published(self, run: RunInfo, policy: str, version: int) -> None:
        """A trainer (rank 0) announced a version."""
        self._hook.astraflow_weights_published(run=run, policy=policy, version=version)

    def choose_transport(
        self, run: RunInfo, engine: str, trainer: str, ends: TransportEnds
    ) -> TransportChoice | str | None:
        """The transport for ``use = "auto"``, or ``None`` if no plugin chooses."""
        chosen: TransportChoice | str | None = self._hook.astraflow_choose_transport(
            run=run, engine=engine, trainer=trainer, ends=ends
        )
        return chosen

    def routes(self, service: str) -> list[Any]:
        """FastAPI routers that plugins add to ``service``, in the order of the plugins' names."""
        answers = self._hook.astraflow_routes(service=service)
        return [router for routers in reversed(answers) for router in routers]

    def train_step(
        self, run: RunInfo, step: int, batch: Batch, call: Callable[[], Mapping[str, float]]
    ) -> Mapping[str, float]:
        """Run ``call``, one training step that returns its metrics, inside the wrappers of plugins."""
        metrics: Mapping[str, float] = self._hook.astraflow_train_step.call_extra(
            [lambda: call()], {"run": run, "step": step, "batch": batch}
        )
        return metrics

    def resolve_model(self, reference: str, seed: int, cache: Path) -> Path:
        """The Hugging Face folder of a model reference.

        A path is the core's own: it must be a folder with a ``config.json``. A reference with a scheme
        (``pypi:name``) goes to every healthy plugin that resolves models, the first answer wins. Raises
        :class:`PreflightError` naming what is missing.
        """
        scheme = _SCHEME.match(reference)
        if scheme is None:
            return _checked(Path(reference).expanduser(), f"model {reference!r}")
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PreflightError(
                f"model {reference!r}: the cache of models {str(cache)!r} cannot be made: {error.strerror}; "
                "set ASTRAFLOW_CACHE to a folder that can be written"
            ) from error
        manager = plugin_manager()
        for plugin in self._resolvers:
            manager.register(plugin.module, name=plugin.name)
        answer = manager.hook.astraflow_resolve_model(reference=reference, seed=seed, cache=cache)
        if answer is None:
            asked = ", ".join(plugin.name for plugin in self._resolvers) or "none is installed"
            raise PreflightError(
                f"model {reference!r}: no plugin answers for the scheme '{scheme[1]}:' (plugins that resolve "
                f"models: {asked}); install one that does, or give a local Hugging Face folder"
            )
        if not isinstance(answer, Path):
            raise PluginError(
                f"model {reference!r}: astraflow_resolve_model of a plugin ({', '.join(p.name for p in self._resolvers)}) "
                f"returned {answer!r}; expected a pathlib.Path or None"
            )
        return _checked(answer, f"model {reference!r}, resolved to {str(answer)!r}")

    def check_model(self, reference: str) -> str:
        """What :meth:`resolve_model` would do, without fetching anything; raises where it is sure to."""
        scheme = _SCHEME.match(reference)
        if scheme is None:
            return f"{_checked(Path(reference).expanduser(), f'model {reference!r}')} is a model folder"
        names = ", ".join(plugin.name for plugin in self._resolvers)
        if not names:
            raise PreflightError(
                f"model {reference!r}: no installed plugin resolves models, so none answers for the scheme "
                f"'{scheme[1]}:'"
            )
        return f"{reference!r} is resolved when the run starts, by one of the plugins {names}"


def _chooses(catalog: Catalog, name: str) -> bool:
    return any(p.name == name and "astraflow_choose_transport" in p.hooks for p in catalog.plugins)


def _resolvers(catalog: Catalog) -> tuple[Plugin, ...]:
    return tuple(p for p in catalog.plugins if p.healthy and "astraflow_resolve_model" in p.hooks)


def _checked(folder: Path, who: str) -> Path:
    if not folder.exists():
        raise PreflightError(
            f"{who}: there is no folder {str(folder.absolute())!r}; give a local Hugging Face folder, or a "
            "reference with a scheme, such as 'pypi:NAME', that an installed plugin resolves"
        )
    if not folder.is_dir():
        raise PreflightError(
            f"{who}: is a file; give the Hugging Face folder that holds config.json"
        )
    if not (folder / "config.json").is_file():
        raise PreflightError(f"{who}: the folder {str(folder.absolute())!r} has no config.json")
    return folder.absolute()
