"""Certificates are renewed and revoked while a service runs: a new connection uses the files as they are when it
begins."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from astraflow_runtime.cli import main
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.server import Server, create_app
from astraflow_wire.http.tls import RunTls, TlsProblem, UntrustedPeer, give_process, server_tls

TOKEN, SOON_S = "secret", 20.0


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """Certificates of hosts ``head`` and ``gpu-1``, both of this machine."""
    folder = tmp_path / "certs"
    assert main(["certs", str(folder), "--host", "head", "--host", "gpu-1"]) == 0
    return folder


def of(certs: Path, host: str) -> RunTls:
    files = (certs / f"{name}" for name in ("authority.pem", f"{host}.pem", f"{host}.key"))
    return RunTls(*files, client_certificates=True)


@pytest.fixture
def url(certs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A service of ``head``."""
    app = create_app("test", "", 1000)
    app.add_api_route("/v1/fact", lambda: {"fact": 1}, methods=["GET"])
    for name in ("AUTHORITY", "CERTIFICATE", "PRIVATE_KEY", "CLIENT_CERTIFICATES"):
        monkeypatch.setenv(f"ASTRAFLOW_TLS_{name}", "")
    give_process(of(certs, "head"))
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    server = Server(app, "127.0.0.1", 0)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(SOON_S)
    yield server.url
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(SOON_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def asked(url: str, tls: RunTls) -> object:
    with closing(SyncClient(url, TOKEN, tls=tls)) as client:
        return client.get_json("/v1/fact", deadline_s=SOON_S)


def shown(url: str, tls: RunTls) -> bytes | None:
    """The certificate that a new connection gets."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    with (
        socket.create_connection((host, int(port)), SOON_S) as plain,
        tls.client_context().wrap_socket(plain, server_hostname=host) as connection,
    ):
        return connection.getpeercert(binary_form=True)


def test_a_revoked_host_is_shut_out_while_others_and_the_service_go_on(
    certs: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {
        name: (certs / name).read_bytes() for name in ("gpu-1.pem", "gpu-1.key", "authority.pem")
    }
    gpu, head = of(certs, "gpu-1"), of(certs, "head")
    assert asked(url, gpu) == asked(url, head) == {"fact": 1}
    assert main(["certs", str(certs), "--revoke", "gpu-1"]) == 0
    assert "revoked gpu-1. Copy" in capsys.readouterr().out
    assert not (certs / "gpu-1.key").exists()
    stolen = certs.parent / "stolen"  # whoever has the files, and the authority as it was
    stolen.mkdir()
    for name, content in kept.items():
        (stolen / name).write_bytes(content)
    with pytest.raises(UntrustedPeer, match="does not accept our certificate"):
        asked(url, of(stolen, "gpu-1"))
    assert asked(url, head) == {"fact": 1}
    assert main(["certs", str(certs), "--host", "gpu-1"]) == 0  # a new one, for the same host
    assert asked(url, of(certs, "gpu-1")) == {"fact": 1}
    with pytest.raises(UntrustedPeer, match="does not accept our certificate"):
        asked(url, of(stolen, "gpu-1"))
    for name in ("gpu-1.pem", "gpu-1.key"):
        (certs / name).write_bytes(kept[name])
    with pytest.raises(TlsProblem, match=r"gpu-1.pem is revoked by .*authority.pem"):
        of(certs, "gpu-1").check(["127.0.0.1"])


def test_a_service_whose_certificate_is_revoked_is_not_trusted(certs: Path, url: str) -> None:
    assert main(["certs", str(certs), "--revoke", "head"]) == 0
    gpu = of(certs, "gpu-1")
    with pytest.raises(UntrustedPeer, match=r"that the authority .*authority.pem has revoked"):
        asked(url, gpu)


def test_a_renewed_certificate_is_shown_without_a_restart(
    certs: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = of(certs, "gpu-1")
    before = shown(url, client)
    for name in ("head.pem", "head.key"):
        (certs / name).unlink()
    assert shown(url, client) == before, "half of a renewal changes nothing"
    assert re.search("head.pem cannot be read.*keep using the previous files", caplog.text)
    assert main(["certs", str(certs), "--host", "head"]) == 0
    after = shown(url, client)
    assert after != before
    assert after == ssl.PEM_cert_to_DER_cert((certs / "head.pem").read_text())
    assert asked(url, client) == {"fact": 1}


def test_no_session_is_resumed_which_would_show_no_certificate(certs: Path, url: str) -> None:
    context = server_tls("127.0.0.1")
    assert context is not None and context.num_tickets == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--revoke", "nobody"), "nobody.pem: No such file or directory; it is needed to revoke"),
        (("--revoke", "authority"), "only certificates of hosts are revoked"),
        (("--revoke", "head", "--host", "late"), "make and revoke certificates with separate commands"),
    ],
)  # fmt: skip
def test_what_cannot_be_revoked_is_refused(
    certs: Path, arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file.name: file.read_bytes() for file in certs.iterdir()}
    assert main(["certs", str(certs), *arguments]) == 2
    assert says in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in certs.iterdir()} == before
