"""A task folder in the format of Harbor 0.25 (schema 1.x): ``instruction.md``, ``task.toml``, ``environment/Dockerfile``,
``tests/test.sh`` and, for a check, ``solution/solve.sh``."""

from __future__ import annotations

import posixpath
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from astraflow_contrib_harbor.dockerfile import ImageDescription, read_dockerfile

MARKS = ("instruction.md", "task.toml", "tests/test.sh")
"""Files that every task has."""
FOLDERS = ("/app", "/workspace", "/data", "/testbed", "/tests", "/logs", "/solution")
"""Folders that a sandbox has in addition to ``/tmp``."""
MOST_FILES, MOST_BYTES = 1000, 16 << 20

Files = dict[str, tuple[int, bytes]]
"""Absolute path in the sandbox → mode and content."""


@dataclass(frozen=True, slots=True)
class HarborTask:
    """``files`` are there when an episode begins, ``tests`` when it ends. ``test_variables`` and ``solution_variables`` are
    those of the scripts."""

    instruction: str
    workdir: str
    variables: dict[str, str]
    files: Files
    tests: Files
    test_variables: dict[str, str]
    solution: Files
    solution_variables: dict[str, str]

    @property
    def digest(self) -> str:
        """The digest of all files that decide an episode and its reward."""
        digest = blake2b(digest_size=16)
        told = (self.instruction, self.workdir, self.variables, self.files, self.tests)
        digest.update(repr((told, self.test_variables)).encode())
        return digest.hexdigest()


def read_task(folder: Path, images: Sequence[str], skip_runs: bool) -> HarborTask:
    """The task of a folder. Raises :class:`ValueError` if something is missing, or it needs a container."""
    try:
        return _read(folder, images, skip_runs)
    except OSError as error:
        raise ValueError(f"{error.filename or folder}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"task.toml: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"has a file that is not UTF-8: {error}") from error


def _read(folder: Path, images: Sequence[str], skip_runs: bool) -> HarborTask:
    for needed in MARKS:
        if not (folder / needed).is_file():
            raise ValueError(f"has no {needed}")
    settings = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    environment, verifier = _table(settings, "environment"), _table(settings, "verifier")
    _refuse_what_needs_more(settings, environment, verifier)
    image = _image(folder / "environment", environment, images, skip_runs)
    workdir = str(environment.get("workdir") or image.workdir)
    instruction = (folder / "instruction.md").read_text("utf-8").strip()
    if not instruction:
        raise ValueError("instruction.md is empty")
    files: Files = {}
    for source, target in image.copies:
        files.update(_copied(folder / "environment", source, target))
    _check_places([workdir, *files])
    return HarborTask(
        instruction,
        workdir,
        {**image.variables, **_variables(environment, "environment")},
        files,
        dict(_below(folder / "tests", "/tests")),
        _variables(verifier, "verifier"),
        dict(_below(folder / "solution", "/solution")),
        _variables(_table(settings, "solution"), "solution"),
    )


def _refuse_what_needs_more(
    settings: Mapping[str, Any], environment: Mapping[str, Any], verifier: Mapping[str, Any]
) -> None:
    reasons = {
        "has several steps ([[steps]]), and an episode here has one: give each step its own folder, or play it "
        "with Harbor": settings.get("steps"),
        f"needs the image {environment.get('docker_image')!r}, and no container runs here: describe it by "
        "environment/Dockerfile from one of 'images' of the prompt source, or play it with Harbor": environment.get(
            "docker_image"
        ),
        "is for another system than Linux": str(environment.get("os", "linux")).lower() != "linux",
        "needs GPUs": environment.get("gpus"),
        "needs a TPU": environment.get("tpu"),
        "needs MCP servers": environment.get("mcp_servers"),
        "waits for a service (healthcheck)": environment.get("healthcheck"),
        "is judged in a separate container ([verifier] environment_mode)": verifier.get(
            "environment"
        )
        or verifier.get("environment_mode") == "separate",
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{reason}")


def _image(
    folder: Path, environment: Mapping[str, Any], images: Sequence[str], skip_runs: bool
) -> ImageDescription:
    if found := sorted(folder.glob("*compose*.y*ml")):
        raise ValueError(f"needs several containers ({found[0].name}), and none runs here")
    if not (folder / "Dockerfile").is_file():
        raise ValueError("has no environment/Dockerfile")
    return read_dockerfile(folder / "Dockerfile", images, skip_runs)


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"task.toml: {name!r} is {found!r:.40}; expected a table")
    return found


def _variables(table: Mapping[str, Any], name: str) -> dict[str, str]:
    found = table.get("env", {})
    for key, value in found.items():
        if "${" in str(value):
            raise ValueError(
                f"task.toml: {key} of [{name}.env] is {value!r}: variables of the host do not reach a sandbox"
            )
    return {str(key): str(value) for key, value in found.items()}


def _copied(folder: Path, source: str, target: str) -> Files:
    """The files of one COPY, as Docker copies them: a folder's content, or a file."""
    found = (folder / source).resolve()
    if not found.is_relative_to(folder.resolve()) or not found.exists():
        raise ValueError(f"environment/Dockerfile copies {source!r}, which is not in environment/")
    if found.is_dir():
        files = dict(_below(found, target.rstrip("/") or "/"))
        files.pop(f"{target.rstrip('/')}/Dockerfile", None)
        return files
    path = posixpath.join(target, found.name) if target.endswith("/") else target
    return {path: _content(found)}


def _below(folder: Path, target: str) -> Iterator[tuple[str, tuple[int, bytes]]]:
    size = 0
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path.relative_to(folder.parent)} is a link or no plain file")
        if path.is_file():
            content = _content(path)
            size += len(content[1])
            if number >= MOST_FILES or size > MOST_BYTES:
                raise ValueError(
                    f"{folder.name}/ has more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB"
                )
            yield posixpath.join(target, path.relative_to(folder).as_posix()), content


def _content(path: Path) -> tuple[int, bytes]:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} has more than {MOST_BYTES >> 20} MiB")
    return (
        0o755 if path.stat().st_mode & 0o100 or path.suffix == ".sh" else 0o644,
        path.read_bytes(),
    )


def _check_places(paths: Sequence[str]) -> None:
    for path in paths:
        if not any(f"{path}/".startswith(f"{folder}/") for folder in (*FOLDERS, "/tmp")):  # noqa: S108 - of the sandbox
            raise ValueError(
                f"uses {path}; a sandbox has the folders {', '.join(FOLDERS)} and /tmp to write to"
            )
