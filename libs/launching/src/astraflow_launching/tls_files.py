"""The files of ``[tls]`` that a host needs: the authority, and its own certificate and key."""

from __future__ import annotations

import tomllib
from pathlib import Path

from astraflow_wire.http.tls import HOST

CONFIG = "config.toml"
_KEYS = ("authority", "certificate", "private_key")


def tls_files(directory: Path, address: str) -> dict[str, Path]:
    """Key of ``[tls]`` → its file on the host that others reach at ``address``; empty for a run without the table, and
    before the config is in its ``directory``."""
    try:
        table = tomllib.loads((directory / CONFIG).read_text(encoding="utf-8")).get("tls", {})
    except FileNotFoundError:
        return {}
    return {key: Path(str(table[key]).replace(HOST, address)) for key in _KEYS if key in table}
