"""Reads and installs an artifact. Also its ``__main__.py``: a host needs Python and nothing else, so that this module
imports the standard library only.

An artifact is a zip: ``manifest.json`` has the size and SHA-256 of each other member; the digest of the artifact is that of
``manifest.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

FORMAT = 1
MANIFEST = "manifest.json"
MARKER = "astraflow-artifact.json"
"""In an environment: ``{"digest": …}`` of the artifact that it was made from. Written last: without it, it is not whole."""
MOST_MANIFEST_BYTES = 4 << 20
MOST_MEMBERS = 20_000
MOST_DIRECTORY_BYTES = 8 << 20
MOST_BYTES = 64 << 30
"""Bytes of all members together, unless the caller allows more."""
DEADLINE_S = 3600.0
"""Longest that the installation of one environment, or the wait for another process that makes it, may take."""
_CHUNK = 1 << 20
_SAFE_PART = re.compile(
    r"[A-Za-z0-9_+@=,()\[\]{}~#%! -][A-Za-z0-9._+@=,()\[\]{}~#%! -]*|\.[A-Za-z0-9_][A-Za-z0-9._-]*"
)
_FOLDERS = ("run/", "wheels/")
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!_-]*")
_ROLE = re.compile(r"[a-z][a-z0-9_-]{0,40}")


class ArtifactError(ValueError):
    """An artifact that is refused; the text says why and what to do."""


def is_safe_part(part: str) -> bool:
    """Whether one part of a path may be in an artifact: no ``..``, separator, drive or control character."""
    return _SAFE_PART.fullmatch(part) is not None


def read_manifest(path: Path, most_bytes: int = MOST_BYTES) -> tuple[dict[str, Any], str]:
    """The manifest and the digest of an artifact, its list of members checked but not their contents.

    Raises :class:`ArtifactError`; memory is bounded whatever the file holds.
    """
    try:
        with path.open("rb") as file:
            return _read(_opened(file, path), path, most_bytes)[1:]
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from error


def _opened(file: IO[bytes], path: Path) -> zipfile.ZipFile:
    _check_directory(file, path)
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> ArtifactError:
    return ArtifactError(f"{path}: damaged, or not made by `astraflow pack`: {why}; copy it again")


def _check_directory(file: IO[bytes], path: Path) -> None:
    """Refuse a list of members that would not fit into memory (zip: 4.3.14 to 4.3.16 of APPNOTE.TXT)."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - 65_557 - 20)
    file.seek(start)
    tail = file.read(65_557 + 20)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 22:
        raise _damaged(path, "it has no list of members")
    sizes = [struct.unpack_from("<L", tail, at + 12)[0]]
    locator = tail[max(0, at - 20) : at]
    if locator.startswith(b"PK\6\7"):
        file.seek(min(size, struct.unpack_from("<Q", locator, 8)[0]))
        large = file.read(56)
        if not large.startswith(b"PK\6\6") or len(large) < 56:
            raise _damaged(path, "its 64-bit list of members is not where it should be")
        sizes = [struct.unpack_from("<Q", large, 40)[0]]
    if max(sizes) > MOST_DIRECTORY_BYTES:
        raise ArtifactError(
            f"{path}: its list of members takes {max(sizes)} bytes; at most {MOST_DIRECTORY_BYTES} are read"
        )
    file.seek(0)


def _read(
    archive: zipfile.ZipFile, path: Path, most_bytes: int
) -> tuple[dict[str, zipfile.ZipInfo], dict[str, Any], str]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        _check_member(info, path)
        if info.filename in members:
            raise ArtifactError(f"{path}: has {info.filename!r} twice")
        members[info.filename] = info
        if len(members) > MOST_MEMBERS:
            raise ArtifactError(f"{path}: has more than {MOST_MEMBERS} members")
    if MANIFEST not in members:
        raise _damaged(path, f"there is no {MANIFEST}")
    text = b"".join(_content(archive, members[MANIFEST], MOST_MANIFEST_BYTES, path))
    try:
        manifest = json.loads(text)
        files = manifest["files"]
        sizes = {name: int(entry["bytes"]) for name, entry in files.items()}
        roles = {str(r): [str(w) for w in e["wheels"]] for r, e in manifest["roles"].items()}
        pins = [str(pin) for entry in manifest["roles"].values() for pin in entry["requirements"]]
        for key in ("python", "complete", "format"):
            manifest[key]
        if any(set(entry) != {"bytes", "sha256"} for entry in files.values()):
            raise ValueError("a file has other keys than bytes and sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{MANIFEST}: {type(error).__name__}: {error}") from error
    if manifest["format"] != FORMAT:
        raise ArtifactError(
            f"{path}: format {manifest['format']!r}; this AstraFlow reads {FORMAT}: use the one that packed it"
        )
    if bad := [role for role in roles if not _ROLE.fullmatch(role)]:
        raise ArtifactError(f"{path}: {bad[0]!r} is not the name of a role")
    if bad := [pin for pin in pins if not _PIN.fullmatch(pin)]:
        raise ArtifactError(f"{path}: {bad[0]!r} is not a requirement such as 'name==1.0'")
    if surplus := sorted(members.keys() - files.keys() - {MANIFEST}):
        raise ArtifactError(f"{path}: {surplus[0]!r} is not in its manifest")
    if bad := [w for wheels in roles.values() for w in wheels if not w.startswith("wheels/")]:
        raise ArtifactError(f"{path}: {bad[0]!r} is not among its wheels")
    if missing := sorted(
        {*files, *(w for wheels in roles.values() for w in wheels)} - members.keys()
    ):
        raise ArtifactError(f"{path}: {missing[0]!r} of its manifest is missing")
    for name, size in sizes.items():
        if members[name].file_size != size:
            raise ArtifactError(
                f"{path}: {name!r} has {members[name].file_size} bytes; its manifest says {size}"
            )
    if sum(sizes.values()) > most_bytes:
        raise ArtifactError(
            f"{path}: would take {sum(sizes.values())} bytes; at most {most_bytes} are allowed"
        )
    return members, manifest, hashlib.sha256(text).hexdigest()


def _check_member(info: zipfile.ZipInfo, path: Path) -> None:
    name, mode = info.filename, info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise ArtifactError(
            f"{path}: {name!r} is a link or a special file; an artifact has plain files only"
        )
    if any(not is_safe_part(part) for part in name.split("/")):
        raise ArtifactError(f"{path}: {name!r} is not a safe path")
    if name not in (MANIFEST, "__main__.py") and not name.startswith(_FOLDERS):
        raise ArtifactError(f"{path}: {name!r} is in no folder that an artifact has")
    if info.flag_bits & 1:
        raise ArtifactError(f"{path}: {name!r} is encrypted")
    if info.compress_type != zipfile.ZIP_STORED:
        raise ArtifactError(f"{path}: {name!r} is compressed; an artifact has stored files only")


def _content(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int, path: Path
) -> Iterator[bytes]:
    """The bytes of a member, at most ``most``."""
    had = 0
    try:
        with archive.open(info) as file:
            while chunk := file.read(_CHUNK):
                had += len(chunk)
                if had > most:
                    raise ArtifactError(f"{path}: {info.filename!r} has more than {most} bytes")
                yield chunk
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise _damaged(path, f"{info.filename!r}: {error}") from error


def install(
    path: Path,
    into: Path,
    roles: list[str] | None = None,
    most_bytes: int = MOST_BYTES,
    offline: bool = False,
) -> tuple[Path, dict[str, Path]]:
    """Install an artifact below ``into``, in a folder named by its digest. Existing parts are kept.

    Returns the folder of the run's config and role → interpreter. ``roles``: those that this host needs; all by default.
    ``offline``: fail instead of asking an index. Raises :class:`ArtifactError`.
    """
    with path.open("rb") as file:
        archive = _opened(file, path)
        members, manifest, digest = _read(archive, path, most_bytes)
        _check_host(manifest, path)
        wanted = list(manifest["roles"]) if roles is None else list(dict.fromkeys(roles))
        if unknown := [role for role in wanted if role not in manifest["roles"]]:
            raise ArtifactError(
                f"{path}: has no role {unknown[0]!r} (it has: {', '.join(manifest['roles'])})"
            )
        folder = into.absolute() / digest[:32]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(folder):
            if not (folder / MARKER).exists():
                _extract(archive, members, manifest, folder, path)
                _mark(folder, digest)
            pythons = {
                role: _environment(role, manifest, digest, folder, offline) for role in wanted
            }
    return folder / "run", pythons


def _check_host(manifest: dict[str, Any], path: Path) -> None:
    here = "{}.{}".format(*sys.version_info[:2])
    if manifest["python"] != here:
        raise ArtifactError(
            f"{path}: was packed for Python {manifest['python']}, and this is Python {here} ({sys.executable}): run it with "
            f"python{manifest['python']}, or pack it with Python {here}"
        )
    machine = f"{sys.platform}-{platform.machine()}"
    if manifest.get("platform", machine) != machine:
        raise ArtifactError(
            f"{path}: holds wheels for {manifest['platform']}, and this host is {machine}: pack it on such a host, or without "
            "--with-dependencies"
        )


def _extract(
    archive: zipfile.ZipFile,
    members: dict[str, zipfile.ZipInfo],
    manifest: dict[str, Any],
    folder: Path,
    path: Path,
) -> None:
    for left in ("run", "wheels"):
        shutil.rmtree(folder / left, ignore_errors=True)
    for name, entry in manifest["files"].items():
        target = folder / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with target.open("wb") as out:
            for chunk in _content(archive, members[name], entry["bytes"], path):
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != entry["sha256"]:
            target.unlink()
            raise ArtifactError(
                f"{path}: {name!r} has another digest than its manifest says; copy the artifact again"
            )


def _mark(folder: Path, digest: str) -> None:
    """Say that a folder is whole, in one step."""
    temporary = folder / f".{MARKER}.{os.getpid()}"
    temporary.write_text(json.dumps({"digest": digest}) + "\n", encoding="utf-8")
    temporary.replace(folder / MARKER)


def _environment(
    role: str, manifest: dict[str, Any], digest: str, folder: Path, offline: bool
) -> Path:
    """The interpreter of a role, created if it does not exist."""
    place = folder / "envs" / role
    python = place / "bin" / "python"
    if (place / MARKER).exists():
        return python
    shutil.rmtree(place, ignore_errors=True)
    entry = manifest["roles"][role]
    _step([sys.executable, "-m", "venv", str(place)], f"the environment of {role}")
    wheels = [str(folder / wheel) for wheel in entry["wheels"]]
    index = (
        ["--no-index", "--find-links", str(folder / "wheels")]
        if offline or manifest["complete"]
        else []
    )
    pip = [str(python), "-m", "pip", "--isolated"] if index else [str(python), "-m", "pip"]
    pins = folder / "envs" / f"{role}.txt"
    pins.write_text("".join(f"{pin}\n" for pin in entry["requirements"]), encoding="utf-8")
    command = [
        *pip,
        "--disable-pip-version-check",
        "--no-input",
        "install",
        "--no-deps",
        *index,
        *wheels,
    ]
    _step([*command, "-r", str(pins)], f"pip for {role}")
    _mark(place, digest)
    return python


def _step(command: list[str], what: str) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=DEADLINE_S, check=False, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(f"{what} did not end within {DEADLINE_S:.0f} s") from error
    if done.returncode:
        lines = "\n  ".join(done.stdout.strip().splitlines()[-8:])
        raise ArtifactError(
            f"{what} failed:\n  {lines}\nWithout a network, pack with --with-dependencies; Debian's Python needs python3-venv"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One installer at a time; the kernel drops the lock if its holder dies."""
    end = time.monotonic() + DEADLINE_S
    with (folder / ".lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ArtifactError(
                        f"another process installs into {folder} for longer than {DEADLINE_S:.0f} s"
                    ) from None
                time.sleep(0.2)
        yield


def main() -> int:
    """``python3 ARTIFACT --into FOLDER``: install, and print the interpreter of each role."""
    parser = argparse.ArgumentParser(
        prog="python3 ARTIFACT", description="Install a packed run of AstraFlow on this host."
    )
    parser.add_argument(
        "--into",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="where to keep installed artifacts",
    )
    parser.add_argument("--role", action="append", help="only this role; may be repeated")
    parser.add_argument(
        "--offline", action="store_true", help="fail instead of asking a package index"
    )
    arguments = parser.parse_args()
    try:
        run, pythons = install(
            Path(sys.argv[0]), arguments.into, arguments.role, offline=arguments.offline
        )
    except (ArtifactError, OSError) as error:
        sys.stderr.write(f"astraflow unpack: {error}\n")
        return 2
    sys.stdout.write(
        json.dumps({"run": str(run), "pythons": {k: str(v) for k, v in pythons.items()}}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
