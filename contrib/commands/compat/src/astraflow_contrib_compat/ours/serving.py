"""Starts the contract: our RaaS on one side, a dataflow of the public protocol on the other."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
from functools import partial
from pathlib import Path

import aiohttp

from astraflow_contrib_compat.config import DataflowConfig, read_compat
from astraflow_contrib_compat.ours.contract import RaasContract, contract_app
from astraflow_contrib_compat.ours.inner import inner_app
from astraflow_contrib_compat.ours.results import public_result
from astraflow_contrib_compat.ours.tasks import OwnTasks
from astraflow_contrib_compat.ours.versions import OwnVersion, OwnVersions
from astraflow_contrib_compat.pickles.decoder import PickleDecoder
from astraflow_contrib_compat.raas.session import enumerate_models
from astraflow_contrib_compat.serving import door_address, read_run, say_where
from astraflow_contrib_compat.weights.receiver import PublicWeights
from astraflow_contrib_compat.weights.tensors import expected_tensors
from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.transport import Transport
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.listening import kept_token, listen_address
from astraflow_runtime.cli.running.secrets import read_token
from astraflow_runtime.models.folders import resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_wire.host.parent import end_with_parent
from astraflow_wire.http.server import Server
from astraflow_wire.messages import SamplingMessage

log = logging.getLogger("astraflow.compat")
ADDRESS = "compat-dataflow.json"
LEAVE_S = 20.0
REGISTER_S, REGISTER_AGAIN_S = 150.0, 5.0


def serve(arguments: argparse.Namespace) -> int:
    """Serve until the public dataflow shuts this down, or a signal; the exit code."""
    token = read_token(arguments.token_file)
    compat = read_compat(arguments.compat, DataflowConfig)
    loaded = read_run(arguments, "", token)
    directory: Path = arguments.directory.absolute()
    (directory / "state").mkdir(0o700, parents=True, exist_ok=True)
    config = resolve_models(loaded.config, ModelResolver(loaded.catalog))
    door_address(compat.listen, compat.advertise)
    configure_logging("compat")
    end_with_parent()
    key = kept_token(compat.key_file)
    return asyncio.run(_serve(config, compat, directory, token, key))


async def _serve(
    config: RunConfig, compat: DataflowConfig, directory: Path, token: str, key: str
) -> int:
    models = compat.model_ids(list(config.policies))
    numbers = {policy: number for number, policy in enumerate_models(models)}
    tasks = OwnTasks(
        list(config.policies),
        config.run.lease_s,
        config.run.task_attempts,
        partial(public_result, numbers=numbers),
    )
    decoder = PickleDecoder(compat.max_body_mb << 20)
    await asyncio.to_thread(decoder.check)
    versions = _versions(config, compat, directory, token, models, tasks)
    sampling = config.sampling
    contract = RaasContract(
        tasks,
        versions,
        compat.workflow.workflow_cls,
        compat.workflow.samples_key,
        SamplingMessage(**sampling.model_dump(exclude={"stop"}), stop=list(sampling.stop)),
        config.run.group_size,
        config.run.deadline_s,
    )
    listen = door_address(compat.listen, compat.advertise)
    inner = listen_address(compat.raas_listen, "raas_listen", "127.0.0.1:19100")
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    outer_app = contract_app(contract, key, decoder, compat.tensors)
    try:
        async with (
            Server(inner_app(tasks, config.run.name, token), *inner) as flow,
            Server(outer_app, *listen, own_keys=True, own_tls=True) as door,
        ):
            await versions.begin()
            told = {"url": door.url, "raas_url": flow.url, "pid": os.getpid()}
            (directory / "state" / ADDRESS).write_text(json.dumps(told))
            base = say_where(door, listen[0], compat.advertise)
            print_line(f"the public dataflow calls {base}/$(cat {compat.key_file})")
            print_line(f"start RaaS with ASTRAFLOW_DATAFLOW={flow.url}")
            parts = [_expire(tasks), _register(compat, tasks, f"{base}/{key}")]
            running = [asyncio.create_task(part) for part in parts]
            ends = [asyncio.create_task(each.wait()) for each in (stopped, contract.stopping)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in (*running, *ends):
                each.cancel()
            await _let_leave(tasks)
    finally:
        await versions.close()
        decoder.close()
    return 0


def _versions(
    config: RunConfig,
    compat: DataflowConfig,
    directory: Path,
    token: str,
    models: dict[str, str],
    tasks: OwnTasks,
) -> OwnVersions:
    catalog = catalog_of_run(config, directory)
    host, _ = door_address(compat.listen, compat.advertise)
    found = {}
    for policy, table in config.policies.items():
        context = component_context(config, directory, "trainer", policy, policy, token)
        transport: Transport = catalog.build(Kind.TRANSPORT, table.transport, context)
        expected, length = expected_tensors(Path(table.model))
        weights = PublicWeights(expected, length, host, compat.advertise or host, compat.weights_s)
        found[models[policy]] = OwnVersion(
            policy, Path(table.model), table.transport.use, transport.publisher(), weights
        )
    return OwnVersions(found, tasks, config.run.deadline_s)


async def _expire(tasks: OwnTasks) -> None:
    while True:
        await asyncio.sleep(min(1.0, tasks.lease_s / 4))
        await tasks.expire()


async def _register(compat: DataflowConfig, tasks: OwnTasks, url: str) -> None:
    """Join the pool of the public dataflow when a RaaS is ready, and try again while it does not answer."""
    if not compat.register_at:
        return
    async with tasks.changed:
        await tasks.changed.wait_for(lambda: tasks.ready)
    told = {"uid": compat.uid, "raas_url": url, "gpu_count": compat.gpu_count}
    timeout = aiohttp.ClientTimeout(total=REGISTER_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as client:
        while True:
            try:
                async with client.post(
                    compat.register_at.rstrip("/") + "/register_raas", json=told
                ) as answer:
                    if answer.status == 200:
                        log.info("registered at %s", compat.register_at)
                        return
                    said = (await answer.content.read(500)).decode(errors="replace")
                    log.warning("%s did not take us: %s", compat.register_at, said)
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("%s does not answer: %s", compat.register_at, error)
            await asyncio.sleep(REGISTER_AGAIN_S)


async def _let_leave(tasks: OwnTasks) -> None:
    """Request our RaaS to leave, and wait until they have left."""
    tasks.stopping = True
    await tasks.note()
    try:
        async with asyncio.timeout(LEAVE_S), tasks.changed:
            await tasks.changed.wait_for(lambda: not tasks.raas)
    except TimeoutError:
        log.warning("%s did not leave within %g s", ", ".join(tasks.raas), LEAVE_S)
