"""Which distribution of this project provides a component or a command, installed or not: for what an error advises."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from astraflow_core.component import Kind

_TABLE = Path(__file__).with_name("distributions.json")
_CHECKOUT = Path(__file__).resolve().parents[4]


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


def provided(kind: Kind) -> dict[str, str]:
    """Component → distribution, of all that this project publishes."""
    found: dict[str, str] = _table()["components"].get(kind, {})
    return found


def provided_commands() -> dict[str, str]:
    """Command → distribution, of all that this project publishes."""
    found: dict[str, str] = _table()["commands"]
    return found


def published() -> frozenset[str]:
    """Every distribution of this project that has a plugin."""
    parts = _table()
    tables = [*parts["components"].values(), *parts["hooks"].values(), provided_commands()]
    return frozenset(name for table in tables for name in table.values())


def implementing(hook: str) -> list[str]:
    """The distributions of this project that implement a lifecycle hook."""
    return sorted(_table()["hooks"].get(hook, {}).values())


def distribution_of(kind: Kind, name: str) -> str | None:
    """The distribution that provides a component; ``None`` if none of ours does."""
    return provided(kind).get(name)


def how_to_install(distribution: str) -> str:
    """The command that installs a distribution of this project, in a checkout that of the checkout."""
    script = _CHECKOUT / "scripts" / "dev.py"
    if script.is_file() and (_CHECKOUT / "core" / "pyproject.toml").is_file():
        return f"python3 {script} setup"
    return f"pip install {distribution}"
