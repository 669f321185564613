"""The folder of a run, as a host of a pool opens it: its tenant may have put anything there."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
import tomllib
from pathlib import Path
from typing import IO, Any

import msgspec

from astraflow_core.config.models import TlsTable
from astraflow_runtime.config.transport_security import tls_of_raw
from astraflow_wire.decoding import UNDECODABLE
from astraflow_wire.http.tls import RunTls

OWNER = "pool.owner"
"""Name of the file with the digest of the id of the run's launcher."""

CONFIG = "config.toml"
_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CONFIG_BYTES, _ADDRESS_BYTES, _TAIL_BYTES = 1 << 20, 1 << 12, 1 << 14


class RaasAddress(msgspec.Struct, frozen=True):
    """``raas.json``: where a RaaS listens, and its process."""

    url: str
    pid: int


def digest_of(launcher: str) -> str:
    """What the folder of a run has of the secret id of its launcher: who reads it cannot join in the run's place."""
    return hashlib.sha256(launcher.encode()).hexdigest()


class OwnedRunFolder:
    """Files of a run's ``directory``: regular ones alone, read up to a bound, and never through a symbolic link. No call waits for
    a FIFO; one that the file system holds up needs a thread. Raises :class:`OSError` for what is not there or is none."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory)

    def is_of(self, launcher: str) -> bool:
        """Whether the launcher with this id has written :data:`OWNER` here."""
        known = self._read((OWNER,), 100).strip()
        return hmac.compare_digest(known, digest_of(launcher).encode())

    def check_config(self) -> None:
        """Raise for a config that is none or too large."""
        self._read((CONFIG,), _CONFIG_BYTES)

    def open_log(self, raas: str) -> IO[bytes]:
        """The log of a RaaS, to be appended to; the folder of logs is made."""
        folder = os.open(self.path, _FOLDER)
        try:
            os.mkdir("logs", dir_fd=folder)
        except FileExistsError:
            pass
        finally:
            os.close(folder)
        return self._open(("logs", f"{raas}.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab")

    def end_of_log(self, raas: str) -> str:
        """The last text of the log; empty if there is none."""
        try:
            with self._open(("logs", f"{raas}.log"), os.O_RDONLY, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def address(self, raas: str) -> RaasAddress | None:
        """The address of a RaaS; ``None`` before it is written. Raises :class:`ValueError` if it is not an address."""
        try:
            text = self._read(("state", raas, "raas.json"), _ADDRESS_BYTES)
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(text, type=RaasAddress)
        except UNDECODABLE as error:
            raise ValueError(f"raas.json of {raas} is malformed: {error}") from error

    def config(self) -> dict[str, Any]:
        """The resolved config of the run. Raises :class:`ValueError` if it is not valid."""
        try:
            return tomllib.loads(self._read((CONFIG,), _CONFIG_BYTES).decode())
        except RecursionError as error:
            raise ValueError(f"{self.path / CONFIG} is nested too deeply") from error

    def tls(self) -> RunTls | None:
        """The TLS of the run. Raises :class:`ValueError` if the config or a file is not valid."""
        config = self.config()
        if (table := config.get("tls")) is None:
            return None
        found = TlsTable.model_validate(table)
        for file in (found.authority, found.certificate, found.private_key):
            if not stat.S_ISREG(os.stat(file).st_mode):
                raise ValueError(f"{file} is not a file")
        return tls_of_raw(config)

    def _read(self, parts: tuple[str, ...], most: int) -> bytes:
        with self._open(parts, os.O_RDONLY, "rb") as file:
            found = file.read(most + 1)
        if len(found) > most:
            raise OSError(
                errno.EFBIG, f"is larger than {most} bytes", str(self.path.joinpath(*parts))
            )
        return found

    def _open(self, parts: tuple[str, ...], flags: int, mode: str) -> IO[bytes]:
        whole = str(self.path.joinpath(*parts))
        folders = [os.open(self.path, _FOLDER)]
        try:
            for part in parts[:-1]:
                folders.append(os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folders[-1]))
            file = os.open(parts[-1], flags | _FLAGS, 0o666, dir_fd=folders[-1])
        except OSError as error:
            # ENXIO: a FIFO without a reader; ELOOP and ENOTDIR: a symbolic link.
            odd = error.errno in (errno.ENXIO, errno.ELOOP, errno.ENOTDIR)
            what = "is not a regular file in the folder of the run" if odd else error.strerror
            raise OSError(error.errno, what, whole) from error
        finally:
            for folder in folders:
                os.close(folder)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "is not a regular file", whole)
        return os.fdopen(file, mode)
