"""``astraflow certs``: an authority, and a certificate for each host, for ``[tls]`` of runs."""

from __future__ import annotations

import argparse
import datetime
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line

if TYPE_CHECKING:
    from astraflow_launching.certificates import Certificate

AUTHORITY, OPERATOR = "authority", "operator"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_DAYS = 3650


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "directory", metavar="DIR", type=Path, help="folder to write, private to its owner"
    )
    parser.add_argument(
        "--host",
        metavar="NAME[,NAME…]",
        action="append",
        default=[],
        help="a host of runs, by every name and address under which others reach it; the first names its files "
        "(default: this host)",
    )
    parser.add_argument(
        "--days", metavar="N", type=float, default=365.0, help="validity in days (default: 365)"
    )
    parser.add_argument(
        "--revoke",
        metavar="NAME",
        action="append",
        default=[],
        help="revoke the certificate of this host, and delete its files",
    )
    parser.set_defaults(command=run_certs)
    teach(
        parser,
        "security.md",
        "certs certs --host gpu-1,10.0.0.11 --host gpu-2,10.0.0.12",
        "certs certs --revoke gpu-2",
    )


def run_certs(arguments: argparse.Namespace) -> int:
    """Make what does not exist yet; nothing is overwritten."""
    if not 0 < arguments.days <= _MOST_DAYS:
        raise UserError(f"--days {arguments.days:g}: expected more than 0 and at most {_MOST_DAYS}")
    valid = datetime.timedelta(days=arguments.days)
    folder: Path = arguments.directory.absolute()
    if arguments.revoke:
        if arguments.host:
            raise UserError(
                "--host and --revoke cannot be combined: make and revoke certificates with separate commands"
            )
        _revoke(folder, arguments.revoke)
        return 0
    hosts = _hosts(arguments.host)
    known = (folder / f"{AUTHORITY}.pem").exists()
    files = [*hosts] if known else [AUTHORITY, *hosts, OPERATOR]
    _refuse_existing(folder, files)
    from astraflow_launching.certificates import Certificate, with_revocations

    authority = _read(folder) if known else _new_authority(valid)
    made: dict[str, Certificate] = {} if known else {AUTHORITY: authority}
    for name in files:
        if name != AUTHORITY:
            made[name] = _issued(authority, hosts.get(name, (name,)), valid)
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if AUTHORITY in made:
            made[AUTHORITY] = Certificate(with_revocations(authority), authority.key)
        for name, certificate in made.items():
            _write(folder / f"{name}.key", certificate.key, 0o600)
            _write(folder / f"{name}.pem", certificate.public, 0o644)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be written: {error.strerror}") from error
    _check(folder, hosts)
    _tell(folder, list(hosts), list(made), arguments.days)
    return 0


def _hosts(given: list[str]) -> dict[str, tuple[str, ...]]:
    """Name of the files of each host → all that its certificate covers."""
    own = socket.gethostname()
    found: dict[str, tuple[str, ...]] = {}
    for text in given or [own]:
        names = tuple(name.strip() for name in text.split(","))
        unusable = [
            n
            for n in names
            if not n or not n.isascii() or not n.isprintable() or "/" in n or " " in n
        ]
        if unusable or names[0] in (AUTHORITY, OPERATOR, *found):
            raise UserError(
                f"--host {text!r}: expected NAME or NAME,NAME of one host, each host once, such as gpu-1,10.0.0.11"
            )
        also = (own,) if own in names else ()
        found[names[0]] = tuple(dict.fromkeys((*names, *also, *_LOOPBACK)))
    return found


def _refuse_existing(folder: Path, names: list[str]) -> None:
    existing = [
        file.name
        for name in names
        for file in (folder / f"{name}.pem", folder / f"{name}.key")
        if file.exists()
    ]
    if existing:
        raise UserError(
            f"{folder} already has {', '.join(existing)}, and nothing is overwritten: name another folder, or another --host for "
            "which the same authority shall sign; to renew a certificate, delete its two files first"
        )


def _read(folder: Path) -> Certificate:
    from astraflow_launching.certificates import Certificate

    try:
        return Certificate(
            (folder / f"{AUTHORITY}.pem").read_bytes(), (folder / f"{AUTHORITY}.key").read_bytes()
        )
    except OSError as error:
        raise UserError(
            f"{folder} has an authority whose {error.filename} cannot be read ({error.strerror}), so nothing can be signed: run this "
            "where its key is, or name another folder"
        ) from error


def _new_authority(valid: datetime.timedelta) -> Certificate:
    from astraflow_launching.certificates import new_authority

    return new_authority(f"AstraFlow runs, {socket.gethostname()}", valid)


def _issued(
    authority: Certificate, names: tuple[str, ...], valid: datetime.timedelta
) -> Certificate:
    from astraflow_launching.certificates import issued

    try:
        return issued(authority, names, valid)
    except ValueError as error:
        raise UserError(f"no certificate of {', '.join(names)} can be made: {error}") from error


def _revoke(folder: Path, names: list[str]) -> None:
    """Name the certificates in the authority's list, in one step, and delete their files."""
    from astraflow_launching.certificates import with_revocations
    from astraflow_wire.host.disk import replace_file

    authority = _read(folder)
    if kept := sorted({AUTHORITY, OPERATOR} & set(names)):
        raise UserError(
            f"--revoke {kept[0]}: only certificates of hosts are revoked; make a new folder instead"
        )
    files = [folder / f"{name}.pem" for name in names]
    try:
        revoked = [file.read_bytes() for file in files]
        replace_file(folder / f"{AUTHORITY}.pem", with_revocations(authority, *revoked).decode())
        for file in files:
            file.unlink()
            file.with_suffix(".key").unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"{error.filename}: {error.strerror}; it is needed to revoke its certificate"
        ) from error
    print_line(
        f"revoked {', '.join(names)}. Copy {folder / AUTHORITY}.pem to each host in the place of the old one: services read it at the "
        "next connection"
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _check(folder: Path, hosts: dict[str, tuple[str, ...]]) -> None:
    """Raise if what was made cannot be used, such as by an authority that has expired."""
    from astraflow_wire.http.tls import RunTls

    for name, covered in hosts.items():
        files = (folder / f"{AUTHORITY}.pem", folder / f"{name}.pem", folder / f"{name}.key")
        RunTls(*files).check(covered)


def _tell(folder: Path, hosts: list[str], made: list[str], days: float) -> None:
    host = hosts[0] if len(hosts) == 1 and AUTHORITY in made else "{host}"
    print_line(
        f"wrote to {folder}: {', '.join(f'{name}.pem and {name}.key' for name in made)}; valid for {days:g} days\n"
        "\n"
        "Write into the TOML file of a run:\n"
        "\n"
        "[tls]\n"
        f'authority = "{folder / AUTHORITY}.pem"\n'
        f'certificate = "{folder / host}.pem"\n'
        f'private_key = "{folder / host}.key"\n'
        "# client_certificates = true  # processes and operators need a certificate too\n"
        "\n"
        f"Each host needs {AUTHORITY}.pem and the two files of its name, at these paths. Keep {AUTHORITY}.key, which signs more "
        f"certificates, private. {OPERATOR}.pem is for commands on other machines (docs/security.md)."
    )
