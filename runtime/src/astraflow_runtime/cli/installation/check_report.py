"""The report of ``astraflow plugin check`` that a distribution may bring along, and what it is worth now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astraflow_core.installed.discovery import Plugin

_NAME = "astraflow_report"
FILE = f"{_NAME}.json"
"""The file in the package of the plugin."""
LARGEST = 1 << 20
_ALGORITHM = "sha256:"


def digest_of(report: dict[str, Any]) -> str:
    """``"sha256:…"`` over the report as canonical JSON (sorted keys, no spaces, UTF-8), without its key ``digest``."""
    rest = {key: value for key, value in report.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _ALGORITHM + hashlib.sha256(text.encode()).hexdigest()


def verdict_of(checks: Collection[str]) -> str:
    """``passed``, ``failed``, or ``incomplete`` if nothing failed and something was ``not checked``."""
    if "failed" in checks:
        return "failed"
    return "incomplete" if "not checked" in checks else "passed"


def digest_of_files(packages: Iterable[Path]) -> str:
    """``"sha256:…"`` over names and bytes of the files of packages, but for bytecode and the report itself."""
    return digest_of_contents(
        (file.relative_to(package.parent), file.read_bytes())
        for package in sorted(packages)
        for file in sorted(package.rglob("*"))
        if file.is_file()
    )


def digest_of_contents(files: Iterable[tuple[PurePath, bytes]]) -> str:
    """The same of the names, which begin with that of the package, and bytes of its files, in the order of their names."""
    digest = hashlib.sha256()
    for name, data in files:
        if "__pycache__" not in name.parts and name.name != FILE:
            content = hashlib.sha256(data).hexdigest()
            digest.update(f"{name.as_posix()} {content}\n".encode())
    return _ALGORITHM + digest.hexdigest()


def facts_of(plugin: Plugin) -> dict[str, str]:
    """``{"check": …}``: the verdict and digest of the report in the plugin's package, or why it says nothing about
    what is installed; empty if there is none."""
    folder = _package_of(plugin)
    if folder is None or not (folder / FILE).is_file():
        return {}
    return {"check": _standing(plugin, folder)}


def _package_of(plugin: Plugin) -> Path | None:
    """The folder of the package with the manifest, of a plugin that was imported."""
    manifest = Path(plugin.file)
    if manifest.suffix != ".py":
        return None
    depth = len(plugin.manifest.split(".")) - (manifest.name != "__init__.py")
    return manifest.parents[depth - 1] if depth else None


def _standing(plugin: Plugin, folder: Path) -> str:
    file = folder / FILE
    try:
        if file.stat().st_size > LARGEST:
            return f"its {FILE} is not used: it has more than {LARGEST >> 20} MiB"
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"its {FILE} cannot be read: {error}"
    if not isinstance(report, dict) or not isinstance(report.get("distribution"), dict):
        return f"its {FILE} is not a report of `astraflow plugin check --json`"
    digest = str(report.get("digest"))
    if digest != digest_of(report):
        return f"its {FILE} was changed after the check: the digest in it, {digest}, is not that of its contents"
    version = report["distribution"].get("version")
    if version != plugin.version:
        return f"its {FILE} is of version {version}; {plugin.version} is installed"
    if report.get("files") != digest_of_files([folder]):
        return (
            f"its {FILE} is for other files of version {version}: they were changed after the check"
        )
    checks = report.get("checks")
    counted = [c.get("verdict") for c in checks] if isinstance(checks, list) else []
    passed = f"{counted.count('passed')} of {len(counted)} checks passed"
    return f"{report.get('verdict')} ({passed}), as its authors say; report {digest}"
