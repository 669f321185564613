"""Starts the routes for trainers of the public protocol."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

from astraflow_contrib_compat.config import TrainerConfig, read_compat
from astraflow_contrib_compat.pickles.decoder import PickleDecoder
from astraflow_contrib_compat.serving import dataflow_url, door_address, read_run, say_where
from astraflow_contrib_compat.trainer.routes import trainer_app
from astraflow_contrib_compat.trainer.session import ForeignTrainer
from astraflow_contrib_compat.weights.receiver import PublicWeights
from astraflow_contrib_compat.weights.tensors import expected_tensors
from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.transport import Transport
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.listening import kept_token
from astraflow_runtime.cli.running.secrets import read_token
from astraflow_runtime.models.folders import resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_wire.host.parent import end_with_parent
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.http.server import Server

ADDRESS = "compat-trainer.json"


def serve(arguments: argparse.Namespace) -> int:
    """Serve until the run ends, or a signal; the exit code."""
    url, token = dataflow_url(arguments), read_token(arguments.token_file)
    compat = read_compat(arguments.compat, TrainerConfig)
    loaded = read_run(arguments, url, token)
    directory: Path = arguments.directory.absolute()
    (directory / "state").mkdir(0o700, parents=True, exist_ok=True)
    config = resolve_models(loaded.config, ModelResolver(loaded.catalog))
    door_address(compat.listen, compat.advertise)
    configure_logging("compat")
    end_with_parent()
    return asyncio.run(_serve(config, compat, directory, url, token, kept_token(compat.key_file)))


async def _serve(
    config: RunConfig, compat: TrainerConfig, directory: Path, url: str, token: str, key: str
) -> int:
    place = door_address(compat.listen, compat.advertise)
    decoder = PickleDecoder(compat.max_body_mb << 20)
    await asyncio.to_thread(decoder.check)
    http = AsyncClient(url, token)
    trainers = {
        model: _trainer(config, compat, directory, token, policy, place[0], http)
        for policy, model in compat.model_ids(list(config.policies)).items()
    }
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    app = trainer_app(trainers, key, decoder, compat.tensors)
    try:
        async with Server(app, *place, own_keys=True, own_tls=True) as server:
            told = {"url": server.url, "pid": os.getpid()}
            (directory / "state" / ADDRESS).write_text(json.dumps(told))
            base = say_where(server, place[0], compat.advertise)
            print_line(f"the public trainer calls {base}/$(cat {compat.key_file})")
            waits = [asyncio.create_task(stopped.wait()), asyncio.create_task(_all_ended(trainers))]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
    finally:
        for trainer in trainers.values():
            await trainer.close()
        await http.aclose()
        decoder.close()
    return 0


async def _all_ended(trainers: dict[str, ForeignTrainer]) -> None:
    for trainer in trainers.values():
        await trainer.ended.wait()


def _trainer(
    config: RunConfig,
    compat: TrainerConfig,
    directory: Path,
    token: str,
    policy: str,
    host: str,
    http: AsyncClient,
) -> ForeignTrainer:
    table = config.policies[policy]
    context = component_context(config, directory, "trainer", policy, policy, token)
    catalog = catalog_of_run(config, directory)
    transport: Transport = catalog.build(Kind.TRANSPORT, table.transport, context)
    model = Path(table.model)
    expected, length = expected_tensors(model)
    weights = PublicWeights(expected, length, host, compat.advertise or host, compat.weights_s)
    return ForeignTrainer(
        policy,
        model,
        table.batch_sequences,
        table.transport.use,
        transport.publisher(),
        weights,
        http,
        config.run.deadline_s,
    )
