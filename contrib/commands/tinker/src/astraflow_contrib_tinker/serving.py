"""Starts the server: reads what is served, listens, and ends with Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import os
import signal
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from astraflow_contrib_tinker.command import TINY
from astraflow_contrib_tinker.routes.runs import run_routes
from astraflow_contrib_tinker.routes.sampling import sampling_routes
from astraflow_contrib_tinker.routes.sessions import session_routes
from astraflow_contrib_tinker.routes.training import MOST_BODY_BYTES, training_routes
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.store import Store
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.environments import cache_folder
from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.running.secrets import read_token
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.models.files import check_files
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_serving.model_folder import ModelConfig
from astraflow_wire.host.private_folder import PrivateFolder
from astraflow_wire.http.auth import new_token
from astraflow_wire.http.listening import tls_context
from astraflow_wire.http.server import Receive, Scope, Send, Server, create_app

API = "/api/v1"
PREFIX = "tml-"
"""Clients refuse a key that begins otherwise."""
TINY_TRAINER = {"publish_dtype": "float32"}
_IDLE_CHECK_S = 30.0


def serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    logging.basicConfig(level=logging.WARNING)
    host, port = address(arguments.listen)
    tls = _tls(host, arguments.certificate, arguments.private_key)
    key = PREFIX + new_token() if arguments.token_file is None else key_of(arguments.token_file)
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
    key: str,
    tls: ssl.SSLContext | None,
    arguments: argparse.Namespace,
) -> int:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    service = Service(base, store, *limits)
    async with Server(tinker_app(service, key), *place, own_keys=True, tls=tls) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        print_line(
            f"{base.name} for Tinker clients: set these where a script runs; Ctrl-C ends the server"
        )
        print_line(f"export TINKER_BASE_URL={server.url}")
        shown = key if arguments.token_file is None else f"$(cat {arguments.token_file})"
        print_line(f"export TINKER_API_KEY={shown}")
        try:
            while not stopped.is_set():
                try:
                    async with asyncio.timeout(_IDLE_CHECK_S):
                        await stopped.wait()
                except TimeoutError:
                    service.end_idle()
        finally:
            await service.close()
    return 0


def tinker_app(service: Service, key: str) -> FastAPI:
    """The endpoints below ``/api/v1``, for clients with ``key``."""
    app = create_app("tinker", "", MOST_BODY_BYTES, error_body)
    for routes in (session_routes, training_routes, sampling_routes, run_routes):
        app.include_router(routes(service), prefix=API)
    app.add_middleware(KeyGuard, key=key)
    return app


def error_body(scope: Scope, status: int, reason: str) -> dict[str, Any]:
    """An error as clients read it."""
    return {"error": reason, "category": "user" if status < 500 else "server"}


class KeyGuard:
    """ASGI middleware: answers 401 without the key in ``X-API-Key``."""

    def __init__(self, app: Any, key: str) -> None:
        self.app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        given = dict(scope.get("headers", ())).get(b"x-api-key", b"")
        if scope["type"] == "http" and not hmac.compare_digest(given, self._key):
            reason = (
                "the key in X-API-Key is not that of this server; set TINKER_API_KEY as it printed"
            )
            await JSONResponse(error_body(scope, 401, reason), 401)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def served_model(
    file: str | None, policy: str | None, overrides: list[str], scratch: Path
) -> BaseModel:
    """The model of a policy of ``file``, or the tiny one. :class:`UserError` if its trainer or engine cannot serve it."""
    trainer: tuple[str, dict[str, Any]] = ("torch", TINY_TRAINER)
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


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, an IPv6 address in brackets; :class:`UserError` if it is none."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        pass
    else:
        if host and port is not None and parts.netloc == text and parts.username is None:
            return host, port
    raise UserError(f"--listen {text!r}: expected HOST:PORT, such as 127.0.0.1:8792")


def key_of(file: Path) -> str:
    """The key in the file, which is written first if there is none."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = read_token(file)
        if not key.startswith(PREFIX):
            raise UserError(
                f"the key in {file} does not begin with {PREFIX}, as clients expect; remove the file, and one is made"
            ) from None
        return key
    except OSError as error:
        raise UserError(
            f"the token file {file} cannot be written: {error.strerror}; give another with --token-file"
        ) from error
    with os.fdopen(handle, "w", encoding="ascii") as opened:
        opened.write(PREFIX + new_token() + "\n")
    return read_token(file)


def _tls(host: str, certificate: Path | None, private_key: Path | None) -> ssl.SSLContext | None:
    exposed = (
        f"--listen {host} is reached by other hosts, and the key would travel in clear text: give --certificate and "
        "--private-key, or listen on 127.0.0.1 and forward the port (ssh -L)"
    )
    return tls_context(host, certificate, private_key, exposed=exposed)
