"""``[tls]``: as the processes of a run use it, and whether its files can be used here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow_core.config.models import RunConfig, TlsTable
from astraflow_core.errors import ConfigError
from astraflow_wire.http.listening import LOOPBACK, own_address
from astraflow_wire.http.tls import RunTls, TlsProblem

_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound)


def tls_of(config: RunConfig) -> RunTls | None:
    """That of a config; ``None`` without the table."""
    return None if config.tls is None else _of_table(config.tls)


def tls_of_raw(config: Mapping[str, Any]) -> RunTls | None:
    """That of the raw ``config.toml`` of a run."""
    table = config.get("tls")
    return None if table is None else _of_table(TlsTable.model_validate(table))


def check_tls(config: RunConfig) -> float | None:
    """How many days remain until a certificate of the run expires; ``None`` without ``[tls]``. Raises :class:`ConfigError` if a file
    is missing or does not fit the others, or if the certificate does not cover where services of this host listen."""
    tls = tls_of(config)
    if tls is None:
        return None
    bound = own_address(config.dataflow.host)
    try:
        return tls.check({LOOPBACK} if bound in _EVERY_ADDRESS else {LOOPBACK, bound})
    except TlsProblem as problem:
        raise ConfigError([f"tls.{problem.key}: {problem}"]) from problem


def _of_table(table: TlsTable) -> RunTls:
    files = (Path(table.authority), Path(table.certificate), Path(table.private_key))
    return RunTls(*files, client_certificates=table.client_certificates)
