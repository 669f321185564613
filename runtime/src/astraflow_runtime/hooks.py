"""The lifecycle hooks as typed methods: the one call site of each.

Active are the plugins that the run names, by a component or in ``[plugins] enable``.
An exception in a hook is not swallowed: a run must not continue half observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from astraflow_core.installed.discovery import Plugin, plugin_manager

if TYPE_CHECKING:
    from astraflow_core.catalog import Catalog
    from astraflow_core.config.models import RunConfig
    from astraflow_core.types import Batch, RunInfo, TransportChoice, TransportEnds


class Hooks:
    """Calls the lifecycle hooks of the ``active`` plugins."""

    def __init__(self, active: Iterable[Plugin]) -> None:
        self.active = tuple(active)
        self._manager = plugin_manager()
        for plugin in self.active:
            self._manager.register(plugin.module, name=plugin.name)
        self._hook: Any = self._manager.hook

    @classmethod
    def for_run(cls, catalog: Catalog, config: RunConfig) -> Hooks:
        """The hooks of a validated run."""
        from astraflow_core.config.tables import AUTO, component_tables

        named = set(config.plugins.enable)
        for place in component_tables(config):
            if place.table.use != AUTO:
                named.add(catalog.select(place.kind, place.table.use).plugin)
            elif not any(_chooses(catalog, name) for name in named):
                named.update(p.name for p in catalog.plugins if p.name == AUTO and p.healthy)
        named.discard("")
        return cls(catalog.plugin(name) for name in sorted(named))

    def run_started(self, run: RunInfo) -> None:
        """Work of this process is about to begin. If a plugin fails, it ends for those called before."""
        calls = self._hook.astraflow_run_started.get_hookimpls()
        order = [call.plugin for call in reversed(calls)]
        for count, plugin in enumerate(order):
            try:
                self._of("astraflow_run_started", [plugin])(run=run)
            except BaseException as error:
                self._of("astraflow_run_ended", order[:count])(run=run, error=error)
                raise

    def _of(self, hook: str, plugins: Iterable[object]) -> Callable[..., Any]:
        others = {plugin.module for plugin in self.active}.difference(plugins)
        return self._manager.subset_hook_caller(hook, others)

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

    def views(self, trajectory: Mapping[str, Any]) -> list[Any]:
        """Views that plugins have of a stored trajectory, plugin by plugin."""
        answers = self._hook.astraflow_views(trajectory=trajectory)
        return [view for views in answers for view in views or ()]

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


def _chooses(catalog: Catalog, name: str) -> bool:
    return any(p.name == name and "astraflow_choose_transport" in p.hooks for p in catalog.plugins)
