"""An sshd for the tests, on addresses of loopback, with keys of its own: each address is a host."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from astraflow_testing.debian import program, unpacked

DEADLINE_S = 20.0


@dataclass(frozen=True)
class LocalSshd:
    """``command``: an ssh client that reaches ``hosts``. ``port``: where sshd listens on each of their addresses."""

    hosts: tuple[str, ...]
    command: tuple[str, ...]
    port: int


def _key(path: Path) -> str:
    keygen = program("ssh-keygen")
    assert keygen, "these tests need ssh-keygen of Debian's openssh-client"
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    kind, key = path.with_suffix(".pub").read_text().split()[:2]
    return f"{kind} {key}"


def _with_user(folder: Path, wrapper: Path) -> dict[str, str]:
    users, groups = (Path("/etc", name).read_text() for name in ("passwd", "group"))
    (folder / "passwd").write_text(f"{users}sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin\n")
    (folder / "group").write_text(groups)
    return {
        "LD_PRELOAD": str(wrapper),
        "NSS_WRAPPER_PASSWD": str(folder / "passwd"),
        "NSS_WRAPPER_GROUP": str(folder / "group"),
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def local_sshd(folder: Path, base: Path, names: tuple[str, ...]) -> Iterator[LocalSshd]:
    """Hosts ``names`` on 127.0.0.2, 127.0.0.3 …; ``base`` keeps an unpacked sshd if none is installed."""
    assert program("ssh"), "these tests need ssh of Debian's openssh-client"
    variables = dict(os.environ)
    if (sshd := program("sshd")) is None:
        root = unpacked(base, "openssh-server", "libwrap0", "libnss-wrapper")
        sshd = str(root / "usr/sbin/sshd")
        variables["LD_LIBRARY_PATH"] = str(next(root.glob("**/libwrap.so.0")).parent)
        if (
            os.getuid() == 0
        ):  # as root it wants a user and an empty folder of its own, which installing makes
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
            variables |= _with_user(folder, next(root.glob("**/libnss_wrapper.so")))
    folder.chmod(0o700)
    host_key, user_key = _key(folder / "host"), _key(folder / "user")
    addresses = [f"127.0.0.{index + 2}" for index in range(len(names))]
    (folder / "authorized").write_text(f"{user_key}\n")
    (folder / "known").write_text("".join(f"{name} {host_key}\n" for name in names))
    port = _free_port()
    (folder / "sshd_config").write_text(
        "\n".join([
            *(f"ListenAddress {address}:{port}" for address in addresses),
            f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/authorized", f"PidFile {folder}/pid",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no", "StrictModes no",
            "PermitRootLogin prohibit-password", "MaxStartups 100", "LogLevel VERBOSE", "UseDNS no",
        ]) + "\n"
    )  # fmt: skip
    (folder / "ssh_config").write_text(
        "\n".join(
            line
            for name, address in zip(names, addresses, strict=True)
            for line in (
                f"Host {name}", f"  HostName {address}", f"  Port {port}", f"  User {getpass.getuser()}",
                f"  IdentityFile {folder}/user", "  IdentitiesOnly yes", f"  HostKeyAlias {name}",
                f"  UserKnownHostsFile {folder}/known", "  StrictHostKeyChecking yes", "  GlobalKnownHostsFile none",
            )
        )
        + "\n"
    )  # fmt: skip
    with subprocess.Popen(
        [sshd, "-D", "-e", "-f", folder / "sshd_config"],
        env=variables,
        stdin=subprocess.DEVNULL,
        stderr=(folder / "sshd.log").open("wb"),
    ) as process:
        try:
            for address in addresses:
                _wait_for(address, port, process, folder / "sshd.log")
            yield LocalSshd(
                names, (str(shutil.which("ssh")), "-F", str(folder / "ssh_config")), port
            )
        finally:
            process.terminate()


def _wait_for(address: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_connection((address, port), 1.0).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
