"""Writes an artifact: equal bytes for equal packages, config and files."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from astraflow_contrib_pack import installer
from astraflow_contrib_pack.contents import RunContents, normal, source_folder
from astraflow_core.errors import DeadlineExceeded, UserError

EPOCH = 315_532_800
"""The date of every file, the first that a zip can have: 1980, in seconds since 1970."""
DEADLINE_S = 1800.0
_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_CHUNK = 1 << 20


def write_artifact(
    out: Path, contents: RunContents, config: str, overrides: Sequence[str], with_dependencies: bool
) -> str:
    """Build the wheels and write the artifact in one step; returns its digest. ``config``: the name of the config file."""
    with tempfile.TemporaryDirectory(prefix="astraflow-pack-") as work:
        wheels = _wheels(contents, Path(work), with_dependencies)
        members: dict[str, Path] = {f"wheels/{w.name}": w for w in sorted(Path(work).glob("*.whl"))}
        members |= {f"run/{name}": path for name, path in sorted(contents.files.items())}
        members["__main__.py"] = Path(installer.__file__)
        for name in members:
            if any(not installer.is_safe_part(part) for part in name.split("/")):
                raise UserError(
                    f"{name!r} has characters that a packed path cannot have; rename the file"
                )
        manifest: dict[str, Any] = {
            "format": installer.FORMAT,
            "python": "{}.{}".format(*sys.version_info[:2]),
            "complete": with_dependencies,
            "config": config,
            "overrides": list(overrides),
            "roles": {
                role: {
                    "wheels": [f"wheels/{wheels[name]}" for name in found.ours],
                    "distributions": {n: d.version for n, d in found.ours.items()},
                    "requirements": list(found.pins),
                }
                for role, found in contents.roles.items()
            },
            "files": {name: _described(path) for name, path in sorted(members.items())},
        }
        if with_dependencies:
            manifest["platform"] = f"{sys.platform}-{platform.machine()}"
        text = json.dumps(manifest, indent=1, sort_keys=True).encode()
        temporary = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            with zipfile.ZipFile(temporary, "w") as archive:
                archive.writestr(_info(installer.MANIFEST), text)
                for name, path in sorted(members.items()):
                    with (
                        path.open("rb") as source,
                        archive.open(_info(name), "w", force_zip64=True) as into,
                    ):
                        while chunk := source.read(_CHUNK):
                            into.write(chunk)
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
    return hashlib.sha256(text).hexdigest()


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr, info.create_system = _MODE, 3
    return info  # stored as it is: wheels are compressed, and compressed bytes depend on the version of zlib


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _wheels(contents: RunContents, work: Path, with_dependencies: bool) -> dict[str, str]:
    """Distribution → file name of its wheel in ``work``."""
    ours: dict[str, metadata.Distribution] = {}
    pins: set[str] = set()
    for role in contents.roles.values():
        ours |= role.ours
        pins |= set(role.pins)
    folders, published = [], []
    for name, distribution in sorted(ours.items()):
        if source := _folder(distribution):
            folders.append(str(source))
        else:
            published.append(f"{name}=={distribution.version}")
    if folders:
        _pip(
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--wheel-dir",
            str(work),
            *folders,
        )
    if published or (with_dependencies and pins):
        wanted = [*published, *(sorted(pins) if with_dependencies else ())]
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(work), *wanted)
    found = {normal(wheel.name.partition("-")[0]): wheel.name for wheel in work.glob("*.whl")}
    if missing := sorted(ours.keys() - found.keys()):
        raise UserError(f"no wheel was built of {missing[0]}: install it again, then pack")
    return found


def _folder(distribution: metadata.Distribution) -> Path | None:
    """The folder to build from; ``None`` for a distribution from an index."""
    path = source_folder(distribution)
    if path is not None and not (path / "pyproject.toml").is_file():
        raise UserError(
            f"{distribution.metadata['Name']} was installed from {path}, which no longer exists: install it again"
        )
    return path


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH)}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=DEADLINE_S, check=False, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(f"pip {arguments[0]}", "its end", DEADLINE_S) from error
    if done.returncode:
        lines = "\n  ".join(done.stdout.strip().splitlines()[-8:])
        raise UserError(
            f"pip {arguments[0]} failed:\n  {lines}\nIts build back end must be installed here (flit_core)"
        )
