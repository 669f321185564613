"""Starts the door: reads both files, listens, and ends with the run."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

from astraflow_contrib_compat.config import CompatConfig, read_compat
from astraflow_contrib_compat.door import ForeignPool, compat_app
from astraflow_contrib_compat.pickles.decoder import PickleDecoder
from astraflow_contrib_compat.raas.session import ForeignRun
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import LoadedConfig, catalog_of_run, component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError
from astraflow_core.protocols.transport import Receiver, Transport
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.joining import joined
from astraflow_runtime.cli.running.listening import kept_token, listen_address
from astraflow_runtime.cli.running.secrets import DATAFLOW, read_token
from astraflow_runtime.config.auto_transport import Joined
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.transport_security import check_tls, tls_of
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_wire.host.parent import end_with_parent
from astraflow_wire.http.auth import is_loopback
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.http.server import Server
from astraflow_wire.http.tls import give_process

ADDRESS = "compat.json"
LOOK_S = 5.0
"""How often it checks that the dataflow responds."""
ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


def serve(arguments: argparse.Namespace) -> int:
    """Serve until the run ends, or a signal; the exit code."""
    url = dataflow_url(arguments)
    token, compat = read_token(arguments.token_file), read_compat(arguments.compat, CompatConfig)
    config = read_run(arguments, url, token).config
    host, port = door_address(compat.listen, compat.advertise)
    directory: Path = arguments.directory.absolute()
    state = directory / "state"
    state.mkdir(0o700, parents=True, exist_ok=True)
    configure_logging("compat")
    end_with_parent()
    key = kept_token(compat.key_file)
    run = _foreign_run(config, compat, directory, url, token, host)
    return asyncio.run(_serve(run, key, (host, port), state / ADDRESS, compat.key_file))


def _foreign_run(
    config: RunConfig, compat: CompatConfig, directory: Path, url: str, token: str, host: str
) -> ForeignRun:
    catalog = catalog_of_run(config, directory)
    return ForeignRun(
        config=compat,
        model_ids=compat.model_ids(list(config.policies)),
        group_size=config.run.group_size,
        deadline_s=config.run.deadline_s,
        dataflow=url,
        token=token,
        most_bytes=compat.max_body_mb << 20,
        receiver=partial(_receiver, config, catalog, directory, token),
        bind=host,
        shown=compat.advertise or host,
    )


def _receiver(
    config: RunConfig, catalog: Catalog, directory: Path, token: str, policy: str, name: str
) -> Receiver:
    """What fetches and verifies the versions of a policy for one RaaS."""
    context = component_context(
        config, directory, role="raas", policy=policy, name=name, token=token
    )
    context = replace(context, directory=context.directory / f"transport-{policy}")
    context.directory.mkdir(0o700, parents=True, exist_ok=True)
    transport: Transport = catalog.build(Kind.TRANSPORT, config.policies[policy].transport, context)
    return transport.receiver()


async def _serve(
    run: ForeignRun, key: str, place: tuple[str, int], address: Path, key_file: Path
) -> int:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    await asyncio.to_thread(PickleDecoder(run.most_bytes).check)
    pool = ForeignPool(run)
    async with Server(compat_app(pool, key), *place, own_keys=True, own_tls=True) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        address.write_text(json.dumps({"url": server.url, "pid": os.getpid()}))
        base = say_where(server, place[0], run.config.advertise)
        print_line(f"RaaS register at {base}/$(cat {key_file})")
        waits = [
            asyncio.create_task(stopped.wait()),
            asyncio.create_task(pool.ended.wait()),
            asyncio.create_task(until_gone(run, pool)),
        ]
        ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await pool.close()
        for each in waits:
            each.cancel()
        for each in ended:
            each.result()
    return 0


async def until_gone(run: ForeignRun, pool: ForeignPool) -> None:
    """While there is no RaaS, which would learn of the end of the run: raises
    :class:`astraflow_core.errors.DeadlineExceeded` when the dataflow has not answered for ``run.deadline_s``."""
    client = AsyncClient(run.dataflow, run.token)
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            if not len(pool):
                await client.get_json("/v1/status", deadline_s=run.deadline_s)
    finally:
        await client.aclose()


def door_address(listen: str, advertise: str) -> tuple[str, int]:
    """Host and port of the key ``listen``. :class:`UserError` if neither it nor ``advertise`` says how others reach
    this host."""
    host, port = listen_address(listen, "listen", "127.0.0.1:8000")
    if host in ANY and not advertise:
        raise UserError(
            f"listen {listen} does not give the address at which others reach this host: set advertise"
        )
    return host, port


def say_where(server: Server, host: str, advertise: str) -> str:
    """The address by which others reach a server."""
    if not advertise or is_loopback(host):
        return server.url
    shown = f"[{advertise}]" if ":" in advertise else advertise
    return f"http://{shown}:{server.port}"


def dataflow_url(arguments: argparse.Namespace) -> str:
    """The address of the run's dataflow."""
    url: str = arguments.dataflow or os.environ.get(DATAFLOW, "")
    if not url.startswith(("http://", "https://")):
        raise UserError(
            f"the dataflow's address is {url!r}: give --dataflow http://HOST:PORT, or set {DATAFLOW}"
        )
    return url


def read_run(arguments: argparse.Namespace, url: str, token: str) -> LoadedConfig:
    """The config of the run whose dataflow is at ``url`` (empty: there is none); from now on this process has its ``[tls]``."""

    def ask(config: RunConfig) -> Joined:
        give_process(tls_of(config))
        return joined(url, token)

    loaded = load_config(
        arguments.file, arguments.overrides, workflow_given=True, joining=ask if url else None
    )
    check_tls(loaded.config)
    give_process(tls_of(loaded.config))
    return loaded
