"""The index of the distributions of this project: ``distributions.json`` is written from their manifests."""

from __future__ import annotations

import json
from pathlib import Path

from astraflow_core.installed.distributions import Index

_CHECKOUT = Path(__file__).resolve().parents[4]


def _how_to_install(distribution: str) -> str:
    """``pip install``; in a checkout the command that installs all of the checkout."""
    script = _CHECKOUT / "scripts" / "dev.py"
    if script.is_file() and (_CHECKOUT / "core" / "pyproject.toml").is_file():
        return f"python3 {script} setup"
    return f"pip install {distribution}"


INDEX = Index(
    **json.loads(Path(__file__).with_name("distributions.json").read_text(encoding="utf-8")),
    how_to_install=_how_to_install,
)
