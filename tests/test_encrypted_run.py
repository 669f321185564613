"""A run with ``[tls]``: each place where its processes listen is found from the processes, and attacked."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN, User, live_processes
from astraflow_testing.tls_files import write_tls
from astraflow_wire.http.tls import HTTPS_ONLY, RunTls

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds listeners in /proc"),
]
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
REQUEST = b"GET /v1/health HTTP/1.1\r\nHost: run\r\n\r\n"
TABLE = """
[tls]
authority = "tls/authority.pem"
certificate = "tls/own.pem"
private_key = "tls/own.key"
client_certificates = true
"""


def listening_ports(pids: list[int]) -> dict[int, int]:
    """TCP port → process, of all on which one of ``pids`` listens."""
    owners = {inode: pid for pid in pids for inode in _sockets(pid)}
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in owners:
                found[int(fields[1].rpartition(":")[2], 16)] = owners[fields[9]]
    return found


def _sockets(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, PermissionError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if match := _SOCKET.fullmatch(os.readlink(each)):
                    yield match[1]


def in_clear_text(port: int) -> bytes:
    """All that a listener sends to a request without TLS."""
    with closing(socket.create_connection(("127.0.0.1", port), 20)) as connection:
        connection.sendall(REQUEST)
        said = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(4096):
                said += piece
        return said


def over_tls(port: int, tls: RunTls) -> bytes:
    """What a listener answers, at first; empty if it ends the connection."""
    context = tls.client_context()
    with (
        closing(socket.create_connection(("127.0.0.1", port), 20)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(REQUEST)
        return connection.recv(4096)


def test_no_listener_of_an_encrypted_run_answers_an_unauthorized_client(
    user: User, tmp_path: Path
) -> None:
    tls = write_tls(user.directory / "tls", client_certificates=True)
    arguments = user.table_arguments("run.steps=100000", config=TABLE_RUN + TABLE)
    process = user.start(*arguments)
    directory = user.wait_for_steps(3)
    ports = listening_ports(live_processes(user.marker))
    assert len(ports) >= 3, f"dataflow, RaaS and publisher listen, as seen: {ports}"
    dataflow = json.loads((directory / "dataflow.json").read_text())
    assert ports[int(dataflow["url"].rpartition(":")[2])] == dataflow["pid"]
    assert dataflow["url"].startswith("https://")

    foreign = write_tls(tmp_path / "foreign")
    for port in ports:
        said = in_clear_text(port)
        assert said.startswith(b"HTTP/1.1 400 ") and HTTPS_ONLY.encode() in said, (port, said)
        assert over_tls(port, tls).startswith(b"HTTP/1.1 "), port
        with pytest.raises(ssl.SSLCertVerificationError):
            over_tls(port, foreign)
        for stranger in (
            RunTls(tls.authority),
            RunTls(tls.authority, foreign.certificate, foreign.private_key),
        ):
            with suppress(ssl.SSLError, ConnectionError):
                assert over_tls(port, stranger) == b"", port

    assert (
        json.loads(user.astraflow("status", "--run", directory, "--json").out)["state"] == "running"
    )
    remote = ("status", "--dataflow", dataflow["url"], "--token-file", directory / "token")
    refused = user.astraflow(*remote)
    assert refused.exit_code == 2 and "set ASTRAFLOW_TLS_AUTHORITY" in refused.err
    tls.write_to(user.environment)
    assert user.astraflow(*remote).exit_code == 0
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 60)
    assert ended.exit_code == 130, ended.text
