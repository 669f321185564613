"""Starts the server: reads what is served, listens, and ends with Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from astraflow_contrib_tinker.recovery import recover
from astraflow_contrib_tinker.routes.runs import run_routes
from astraflow_contrib_tinker.routes.sampling import sampling_routes
from astraflow_contrib_tinker.routes.sessions import session_routes
from astraflow_contrib_tinker.routes.training import MOST_BODY_BYTES, training_routes
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.work.access import CURRENT, PREFIX, ClientKey, read_keys
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.links import SIGNED
from astraflow_contrib_tinker.work.store import Store
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.environments import cache_folder
from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.listening import kept_token, listen_address, listen_tls
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.launch.local.threads import usable_cores
from astraflow_runtime.models.files import check_files
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_serving.model_folder import ModelConfig
from astraflow_wire.host.private_folder import PrivateFolder
from astraflow_wire.http.auth import new_token
from astraflow_wire.http.server import Receive, Scope, Send, Server, create_app

API = "/api/v1"
TINY = "tiny:qwen3?hidden=128&layers=2&heads=4&kv_heads=2&head_dim=32&ffn=384&context=64"
"""The model of the quickstart, random at the start."""
TINY_TRAINER: dict[str, Any] = {"publish_dtype": "float32"}
MOST_TINY_THREADS = 4
"""Of the tiny model's trainer, whose products are too small for more."""
SWITCH_S = 0.0005
"""After which a thread that computes lets another one have the interpreter; 5 ms by default, for which each answer that is sent
would wait."""
_IDLE_CHECK_S = 30.0


def serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    logging.basicConfig(level=logging.WARNING)
    sys.setswitchinterval(SWITCH_S)
    # Read when torch is imported: threads that wait for work of the next operation sleep, also on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if arguments.keys is not None and arguments.token_file is not None:
        raise UserError("--keys and --token-file: give one of them")
    if arguments.keep_every and arguments.token_file is None and arguments.keys is None:
        raise UserError(
            "--keep-every needs --token-file or --keys: clients continue only with a server that has the same key"
        )
    host, port = listen_address(arguments.listen, "--listen", "127.0.0.1:8792")
    tls = listen_tls(host, "--listen", "key", arguments.certificate, arguments.private_key)
    keys = read_keys(arguments.keys) if arguments.keys is not None else {}
    key = ""
    if not keys:
        file = arguments.token_file
        key = PREFIX + new_token() if file is None else key_of(file)
    directory: Path = arguments.directory
    try:
        store = Store(directory)
        scratch = PrivateFolder(directory, "server-")
    except OSError as error:
        raise UserError(f"--directory {directory}: it cannot be used: {error.strerror}") from error
    with contextlib.closing(scratch):
        base = served_model(arguments.file, arguments.policy, arguments.overrides, scratch.path)
        return asyncio.run(
            _serve(
                base,
                store,
                (arguments.models, arguments.engines),
                (host, port),
                keys,
                key,
                tls,
                arguments,
            )
        )


async def _serve(
    base: BaseModel,
    store: Store,
    limits: tuple[int, int],
    place: tuple[str, int],
    keys: dict[str, ClientKey],
    key: str,
    tls: ssl.SSLContext | None,
    arguments: argparse.Namespace,
) -> int:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    service = Service(base, store, *limits, arguments.keep_every, keys)
    kept = recover(service) if arguments.keep_every else []
    async with Server(
        tinker_app(service, {each.key: name for name, each in keys.items()} or {key: ""}),
        *place,
        own_keys=True,
        tls=tls,
        own_tls=True,
    ) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        print_line(
            f"{base.name} for Tinker clients: set these where a script runs; Ctrl-C ends the server"
        )
        if kept:
            print_line(f"continues with {len(kept)} models: {', '.join(kept)}")
        print_line(f"export TINKER_BASE_URL={server.url}")
        if keys:
            print_line(f"TINKER_API_KEY is for each user the key in {arguments.keys}")
        else:
            file = arguments.token_file
            print_line(f"export TINKER_API_KEY={key if file is None else f'$(cat {file})'}")
        try:
            while not stopped.is_set():
                try:
                    async with asyncio.timeout(_IDLE_CHECK_S):
                        await stopped.wait()
                except TimeoutError:
                    service.end_idle()
                    await asyncio.to_thread(store.remove_expired)
        finally:
            await service.close()
    return 0


def tinker_app(service: Service, keys: Mapping[str, str]) -> FastAPI:
    """The endpoints below ``/api/v1``, for clients with one of ``keys``, key → its name."""
    app = create_app("tinker", "", MOST_BODY_BYTES, error_body)
    for routes in (session_routes, training_routes, sampling_routes, run_routes):
        app.include_router(routes(service), prefix=API)
    app.add_middleware(KeyGuard, keys=keys)
    return app


def error_body(scope: Scope, status: int, reason: str) -> dict[str, Any]:
    """An error as clients read it."""
    return {"error": reason, "category": "user" if status < 500 else "server"}


class KeyGuard:
    """ASGI middleware: answers 401 without a key in ``X-API-Key``, and says whose request it is. Links to exported files have a
    signature instead, which their route checks."""

    def __init__(self, app: Any, keys: Mapping[str, str]) -> None:
        self.app = app
        self._names = {_digest(key.encode()): name for key, name in keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] == "http" and not scope["path"].startswith(f"{API}/{SIGNED}/"):
            given = dict(scope.get("headers", ())).get(b"x-api-key", b"")
            name = self._names.get(_digest(given))
            if name is None:
                reason = "the key in X-API-Key is not that of this server; set TINKER_API_KEY as it printed, or to yours"
                await JSONResponse(error_body(scope, 401, reason), 401)(scope, receive, send)
                return
            CURRENT.set(name)
        await self.app(scope, receive, send)


def _digest(key: bytes) -> bytes:
    """Looked up instead of the key, so that timing does not reveal how much of one was right."""
    return hashlib.sha256(key).digest()


def served_model(
    file: str | None, policy: str | None, overrides: list[str], scratch: Path
) -> BaseModel:
    """The model of a policy of ``file``, or the tiny one. :class:`UserError` if its trainer or engine cannot serve it."""
    trainer: tuple[str, dict[str, Any]] = ("torch", {**TINY_TRAINER, "threads": tiny_threads()})
    engine: tuple[str, dict[str, Any]] = ("torch", {})
    catalog, reference, seed = Catalog.discover(), TINY, 0
    if file is None and (policy is not None or overrides):
        raise UserError("--policy and --set belong to a FILE; name one")
    if file is not None:
        loaded = load_config(file, overrides)
        catalog, seed = loaded.catalog, loaded.config.run.seed
        name = _chosen(policy, list(loaded.config.policies), file)
        table = loaded.config.policies[name]
        reference = table.model
        trainer = table.trainer.use, dict(table.trainer.options)
        engine = table.engine.use, dict(table.engine.options)
        if table.engine.python is not None:
            raise UserError(
                f"policies.{name}.engine.python: `astraflow tinker serve` runs engines in its own interpreter; leave it out"
            )
    _check(catalog, Kind.TRAINER, trainer[0], "gradients")
    _check(catalog, Kind.ENGINE, engine[0], "score")
    _check(catalog, Kind.ENGINE, engine[0], "weights.path")
    folder = ModelResolver(catalog).resolve_model(reference, seed, cache_folder())
    check_files(folder, f"model {reference!r}", weights=True)
    name = "astraflow/tiny" if file is None else reference
    return BaseModel(
        name, folder, ModelConfig.read(folder), catalog, trainer, engine, scratch, seed
    )


def tiny_threads() -> int:
    """For the tiny model: models are trained one at a time, so that its trainer may have several cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return (
        int(given) if given.isdecimal() and int(given) else min(MOST_TINY_THREADS, usable_cores())
    )


def _check(catalog: Catalog, kind: Kind, use: str, flag: str) -> None:
    if flag not in catalog.flags(kind, use):
        able = sorted(
            found.component.name
            for found in catalog.components(kind)
            if flag in found.component.capabilities
        )
        raise UserError(
            f"{kind} {use!r} lacks the capability {flag}, which Tinker clients need; those that have it: "
            f"{', '.join(able) or 'none is installed'}"
        )


def _chosen(policy: str | None, names: list[str], file: str) -> str:
    if policy is None and len(names) == 1:
        return names[0]
    if policy is None:
        raise UserError(
            f"{file} has the policies {', '.join(names)}; choose one with --policy NAME"
        )
    if policy not in names:
        raise UserError(
            f"--policy {policy!r}: the policies are {', '.join(names)}{did_you_mean(policy, names)}"
        )
    return policy


def key_of(file: Path) -> str:
    """The key in the file, which is written first if there is none."""
    key = kept_token(file, PREFIX)
    if not key.startswith(PREFIX):
        raise UserError(
            f"the key in {file} does not begin with {PREFIX}, as clients expect; remove the file, and one is made"
        )
    return key
