"""Entry point of the dataflow process: builds its parts from the config, serves until the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context, run_info
from astraflow_core.config.models import ComponentTable, DataPolicyTable, PolicyTable, RunConfig
from astraflow_core.errors import AstraFlowError, NoRoom, PluginError, PromptError, RunFailed
from astraflow_core.protocols.data_policy import Scale
from astraflow_runtime.dataflow.clock import RunClock
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.http.access_records import AccessRecords
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.image.keeper import ImageKeeper
from astraflow_runtime.dataflow.image.restart import continued, written_by
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.dataflow.journal_reader import FOLDER
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.policies.swapping import PolicyBuilder
from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.rollout_log import RolloutLog
from astraflow_runtime.dataflow.state import PROMPTS, FlowState
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_runtime.dataflow.tasks.evaluation_tasks import ROLE, build_evaluation_set
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.package_skew import packages_of_run
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.host import active_clock
from astraflow_wire.host.disk import LOOK_S, replace_file, room_for, when_room
from astraflow_wire.host.parent import end_with_parent
from astraflow_wire.host.process import make_full_collections_periodic, retain_freed_memory
from astraflow_wire.http.connection_limits import raise_descriptor_limit
from astraflow_wire.http.listening import own_address
from astraflow_wire.http.server import Server
from astraflow_wire.images.model import ImageModel
from astraflow_wire.model_files.model_limits import ModelLimits
from astraflow_wire.status import Status

log = logging.getLogger("astraflow.dataflow")

FAREWELL_S = 10.0
PORT_OF_BEFORE_S = 10.0
"""How long a restarted dataflow waits for its old port: the system may have assigned it to an
outgoing connection meanwhile.
"""


def serve(config: RunConfig, directory: Path, token: str, *, stay: bool = False) -> int:
    """Serve the dataflow of a run; returns 0 if the run finished or was stopped, 1 if it failed.

    Writes ``directory/dataflow.json`` with ``url`` and ``pid`` once it listens, ``metrics.jsonl``
    during the run, and ``status.json`` at the end of the run and when it exits. SIGTERM and SIGINT
    stop the run cleanly; the second signal, or one after the end of the run, ends the process at
    once. With ``stay`` it serves until then, for processes that start so slowly that they have not
    called when the run ends.
    """
    configure_logging(ROLE)
    end_with_parent()
    retain_freed_memory()
    make_full_collections_periodic()
    raise_descriptor_limit()
    catalog = catalog_of_run(config, directory)
    hooks = Hooks.for_run(catalog, config)
    run = run_info(config, directory)
    hooks.run_started(run)
    error: BaseException | None = None
    try:
        reason = active_clock.run(_serve(config, directory, token, catalog, hooks, stay))
        if reason is not None:
            error = RunFailed(reason)
            log.error("%s", reason)
            return 1
    except AstraFlowError as problem:
        error = problem
        log.error("%s", problem)
        return problem.exit_code
    except BaseException as problem:
        error = problem
        raise
    finally:
        hooks.run_ended(run, error)
    return 0


def build_state(
    config: RunConfig,
    directory: Path,
    token: str,
    catalog: Catalog,
    wakeups: Wakeups,
    clock: RunClock,
) -> FlowState:
    """The state of a new run, with the components that the config names."""

    def build(kind: Kind, table: ComponentTable, policy: str, name: str) -> Any:
        return catalog.build(
            kind, table, component_context(config, directory, ROLE, policy, name, token)
        )

    def chain(tables: Sequence[DataPolicyTable], policy: str) -> PolicyPipeline:
        named = []
        for index, table in enumerate(tables):
            place = f"data-{policy or 'prompts'}-{index}-{table.use.rpartition('/')[2]}"
            place = place.replace(":", ".")
            component = build(Kind.DATA_POLICY, table, policy, place)
            named.append(NamedPolicy(table.label, component, table.shadow))
        return PolicyPipeline(named)

    prompts = build(Kind.PROMPT_SOURCE, config.prompts, "", "prompts")
    if len(prompts) < 1:
        raise PromptError("[prompts] has no prompts; expected at least one")
    eval_sets = {
        name: build_evaluation_set(config, directory, token, catalog, name)
        for name in config.eval.sets
    }
    rule = build(Kind.DATA_POLICY, config.balance, "", "balance")
    metrics = directory / "metrics.jsonl"
    if not isinstance(rule, Scale):
        raise PluginError(
            f"[balance] use = {config.balance.use!r} does not decide how many RaaS to run; name a data "
            "policy with capability scale"
        )
    return FlowState(
        config,
        cursor=PromptCursor(prompts, config.run.seed, config.prompts.shuffle),
        admission=chain(config.prompts.data, ""),
        chains={policy: chain(table.data, policy) for policy, table in config.policies.items()},
        eval_sets=eval_sets,
        rule=rule,
        clock=clock,
        signals=wakeups,
        steps=when_room(lambda: StepLog(metrics), metrics),
        limits={name: _limits(table) for name, table in config.policies.items()},
        rollouts=RolloutLog.of_run(config, directory),
    )


def _limits(table: PolicyTable) -> ModelLimits:
    folder = Path(table.model)
    limits = ModelLimits.of(folder)
    if table.images:
        limits = replace(limits, images=ImageModel.of(folder))
    return replace(limits, experts=ExpertLayers.of(folder)) if table.router_replay else limits


def policy_builder(
    config: RunConfig, directory: Path, token: str, catalog: Catalog
) -> PolicyBuilder:
    """The function that builds data policies for a swap."""

    def build(place: str, table: DataPolicyTable, number: int) -> Any:
        policy = "" if place == PROMPTS else place
        name = f"data-{place}-swap-{number}"
        context = component_context(config, directory, ROLE, policy, name, token)
        return catalog.build(Kind.DATA_POLICY, table, context)

    return build


async def _serve(
    config: RunConfig, directory: Path, token: str, catalog: Catalog, hooks: Hooks, stay: bool
) -> str | None:
    """Serve until the run is over; the reason if it failed."""
    when_room(lambda: directory.mkdir(parents=True, exist_ok=True), directory)
    wakeups, clock = Wakeups(), RunClock()
    build_policy = policy_builder(config, directory, token, catalog)

    def make() -> Dataflow:
        state = build_state(config, directory, token, catalog, wakeups, clock)
        return Dataflow(state, build_policy)

    port, images = _previous_port(directory), None
    if config.journal.enabled:
        folder = directory / FOLDER
        recorded = config.journal.record_mb * 1_000_000
        journal = when_room(lambda: Journal(folder, clock, recorded_bytes=recorded), folder)
        by = written_by(config, directory)
        flow, covered = _continue(make, clock, journal, by, resumed=port is None)
        images = ImageKeeper(flow, journal, by, covered)
    else:
        flow = make()
    state = flow.state
    service = DataflowService(
        flow,
        wakeups,
        token,
        hooks.routes(ROLE),
        AccessRecords(directory),
        images,
        packages_of_run(config, catalog),
    )
    server = Server(
        service.app,
        own_address(config.dataflow.host),
        port or config.dataflow.port,
        give_up_after_s=PORT_OF_BEFORE_S if port else 0.0,
    )
    hurry, dismissed = asyncio.Event(), asyncio.Event()
    if not stay:
        dismissed.set()
    signalled = asyncio.Event()

    def on_signal(name: str) -> None:
        if state.progress.ending or signalled.is_set():
            hurry.set()
        signalled.set()
        dismissed.set()
        wakeups.changed.set()
        state.stop(f"the dataflow received {name}")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    await server.start()
    address = asyncio.create_task(_write_address(directory, server.url))
    if (await asyncio.wait({address}, timeout=LOOK_S))[0]:
        address.result()
    log.info("listening at %s", server.url)
    sweep = asyncio.create_task(service.sweep())

    def record_end() -> None:
        """Record the end of the run, for a launcher that has not seen it, in case this process dies
        while trainers save.
        """
        _write_status(directory, flow.status(), 0.0)

    try:
        await _until_over(state, wakeups, sweep, hurry, dismissed, record_end)
    finally:
        sweep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweep
        address.cancel()
        await asyncio.to_thread(_write_status, directory, flow.status(), FAREWELL_S / 2)
        await server.stop()
        if images is not None:
            await asyncio.to_thread(images.close)
        state.close()
    return state.progress.reason if state.progress.state is RunState.FAILED else None


def _previous_port(directory: Path) -> int | None:
    """The port of the previous, killed dataflow of this run, where its RaaS and trainers look for
    it. The launcher removes ``dataflow.json`` when it starts a run with all its processes.
    """
    file = directory / "dataflow.json"
    if not file.exists():
        return None
    url: str = json.loads(file.read_text(encoding="utf-8"))["url"]
    return urlsplit(url).port


def _continue(
    make: Callable[[], Dataflow], clock: RunClock, journal: Journal, by: str, *, resumed: bool
) -> tuple[Dataflow, int]:
    """Continue from the end of the journal, or begin a new one. The entries that an image ``by`` this program covers come
    second."""
    flow, covered, read = continued(make, journal, clock.set_time, by)
    clock.resume()
    if covered + read == 0:
        flow.state.records.begin(journal)
        return flow, 0
    flow.state.restore(journal, resumed=resumed)
    updates = ", ".join(f"{p} has made {s.updates} updates" for p, s in flow.state.streams.items())
    log.info("the run continues: %s", updates)
    return flow, covered


async def _until_over(
    state: FlowState,
    wakeups: Wakeups,
    sweep: asyncio.Task[None],
    hurry: asyncio.Event,
    dismissed: asyncio.Event,
    record_end: Callable[[], None],
) -> None:
    """Wait for the end of the run and report it, then wait, up to a deadline, until every RaaS and
    trainer has left.
    """
    while not state.progress.over and not hurry.is_set():
        await _next_change(wakeups, sweep, None)
    record_end()
    log.info("the run is %s: %s", state.progress.state.value, state.progress.reason)
    failed = state.progress.state is RunState.FAILED
    while not dismissed.is_set():
        await _next_change(wakeups, sweep, None)
    end = time.monotonic() + (FAREWELL_S if failed else state.config.run.deadline_s)
    while not (state.all_left or hurry.is_set()) and time.monotonic() < end:
        await _next_change(wakeups, sweep, end - time.monotonic())


async def _next_change(
    wakeups: Wakeups, sweep: asyncio.Task[None], timeout_s: float | None
) -> None:
    change = asyncio.create_task(wakeups.changed.wait())
    try:
        await asyncio.wait({change, sweep}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()
    if sweep.done():
        sweep.result()
    wakeups.changed.clear()


async def _write_address(directory: Path, url: str) -> None:
    """Write the address of the dataflow. Processes that already know it need not wait until the
    disk has room for that.
    """
    path = directory / "dataflow.json"
    content = _as_json({"url": url, "pid": os.getpid()})
    await room_for(lambda: replace_file(path, content), path)


def _write_status(directory: Path, status: Status, longest_s: float) -> None:
    """Write the last status, with the id of this process; wait up to ``longest_s`` for room on the
    disk.
    """
    path = directory / "status.json"
    content = _as_json({"pid": os.getpid(), **msgspec.to_builtins(status)})
    try:
        when_room(lambda: replace_file(path, content), path, longest_s=longest_s)
    except NoRoom as error:
        log.error("%s", error)


def _as_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"
