"""Services and clients of a run with ``[tls]``: which connections succeed, and the errors of the others."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import re
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from astraflow_core.errors import Refused
from astraflow_testing.tls_files import write_tls
from astraflow_wire.http.client import AsyncClient, SyncClient
from astraflow_wire.http.listening import HOST_ADDRESS
from astraflow_wire.http.server import Server, create_app
from astraflow_wire.http.tls import (
    AUTHORITY,
    CERTIFICATE,
    CLIENT_CERTIFICATES,
    HTTPS_ONLY,
    PRIVATE_KEY,
    RunTls,
    TlsProblem,
    UntrustedPeer,
    give_process,
    of_process,
)

pytestmark = pytest.mark.timeout(60)
TOKEN = "secret"
Ask = Callable[[str, RunTls | None], object]
SOON_S = 20.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RunTls:
    return write_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> RunTls:
    """Of another run."""
    return write_tls(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (AUTHORITY, CERTIFICATE, PRIVATE_KEY, CLIENT_CERTIFICATES, HOST_ADDRESS):
        monkeypatch.delenv(key, raising=False)


@contextmanager
def in_process(tls: RunTls | None) -> Iterator[None]:
    """Configure this process as if it had been started with ``tls``."""
    before = dict(os.environ)
    give_process(tls)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def serving(tls: RunTls | None) -> Iterator[str]:
    """The URL of a service of a process that has ``tls``."""
    app = create_app("test", TOKEN, 1000)
    app.add_api_route("/v1/fact", lambda: {"fact": 1}, methods=["GET"])
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        with in_process(tls):
            server = Server(app, "127.0.0.1", 0)
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(SOON_S)
        try:
            yield server.url
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(SOON_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def asked(url: str, tls: RunTls | None) -> object:
    with closing(SyncClient(url, TOKEN, tls=tls)) as client:
        return client.get_json("/v1/fact", deadline_s=SOON_S)


def asked_from_a_loop(url: str, tls: RunTls | None) -> object:
    async def ask() -> object:
        with in_process(tls):
            client = AsyncClient(url, TOKEN)
            try:
                return await client.get_json("/v1/fact", deadline_s=SOON_S)
            finally:
                await client.aclose()

    return asyncio.run(ask())


both = pytest.mark.parametrize("ask", [asked, asked_from_a_loop])


@both
@pytest.mark.parametrize("mutual", [False, True])
def test_processes_of_a_run_understand_each_other(files: RunTls, ask: Ask, mutual: bool) -> None:
    files = replace(files, client_certificates=mutual)
    with serving(files) as url:
        assert url.startswith("https://127.0.0.1:")
        assert ask(url, files) == {"fact": 1}


def test_plain_http_gets_the_advice_to_use_https(files: RunTls) -> None:
    with serving(files) as url:
        plain = url.replace("https", "http")
        with pytest.raises(Refused, match=re.escape(HTTPS_ONLY)) as refused:
            asked(plain, None)
        assert refused.value.status == 400
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port or 0, timeout=20)
        with closing(connection):  # with a body that is longer than what is read of it
            connection.request("POST", "/v1/fact", b"x" * 100_000)
            assert connection.getresponse().status == 400


@both
def test_a_process_with_tls_sends_nothing_in_clear_text(files: RunTls, ask: Ask) -> None:
    with pytest.raises(UntrustedPeer, match=r"clear text.*https://"):
        ask("http://127.0.0.1:9", files)


@both
def test_a_foreign_certificate_is_named_with_what_to_do(
    files: RunTls, foreign: RunTls, ask: Ask
) -> None:
    with serving(foreign) as url, pytest.raises(UntrustedPeer) as refused:
        ask(url, files)
    shown = ssl.PEM_cert_to_DER_cert((foreign.certificate or Path()).read_text())
    text = str(refused.value)
    assert f"{url} shows a certificate (SHA-256 {hashlib.sha256(shown).hexdigest()})" in text
    assert f"the authority {files.authority} has not signed" in text and AUTHORITY in text


@both
def test_without_an_authority_the_certificate_of_a_run_is_foreign(files: RunTls, ask: Ask) -> None:
    with serving(files) as url, pytest.raises(UntrustedPeer, match=f"set {AUTHORITY}"):
        ask(url, None)


@both
def test_without_a_certificate_a_client_is_refused_where_one_is_asked_for(
    files: RunTls, foreign: RunTls, ask: Ask
) -> None:
    with serving(replace(files, client_certificates=True)) as url:
        with pytest.raises(UntrustedPeer, match=f"asks for a client certificate.*{CERTIFICATE}"):
            ask(url, RunTls(files.authority))
        other = replace(foreign, authority=files.authority)
        with pytest.raises(UntrustedPeer, match="does not accept our certificate"):
            ask(url, other)


@both
def test_an_expired_certificate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    late = write_tls(tmp_path, days=-0.5)
    with monkeypatch.context() as patched:
        patched.setattr(RunTls, "check", lambda *_: 1.0)  # it expired while the service ran
        with serving(late) as url, pytest.raises(UntrustedPeer, match="that has expired"):
            ask(url, late)
    with pytest.raises(TlsProblem, match="has expired; make new ones") as refused, serving(late):
        pass
    assert refused.value.key == "certificate"


@both
def test_a_certificate_of_another_host_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    other = write_tls(tmp_path, hosts=("elsewhere",))
    with monkeypatch.context() as patched:
        patched.setattr(RunTls, "check", lambda *_: 1.0)
        with serving(other) as url, pytest.raises(UntrustedPeer, match=r"not one of 127\.0\.0\.1"):
            ask(url, other)
    with pytest.raises(TlsProblem, match=r"does not cover 127\.0\.0\.1") as refused, serving(other):
        pass
    assert refused.value.key == "certificate"


@both
def test_a_service_in_plain_http_is_named(files: RunTls, ask: Ask) -> None:
    with serving(None) as url, pytest.raises(UntrustedPeer, match=r"was started without \[tls\]"):
        ask(url.replace("http", "https"), files)


def test_days_that_remain_are_those_of_the_first_to_expire(tmp_path: Path) -> None:
    assert write_tls(tmp_path / "short", days=0.25).check(["localhost"]) == pytest.approx(
        0.25, 0.01
    )
    assert write_tls(tmp_path / "long", days=9).check(["localhost"]) == pytest.approx(1, 0.01)


def test_each_unusable_file_is_named(tmp_path: Path, files: RunTls, foreign: RunTls) -> None:
    nothing, empty = tmp_path / "nothing.pem", tmp_path / "empty.pem"
    empty.touch()
    for changed, key, said in (
        ({"authority": nothing}, "authority", "cannot be read"),
        ({"authority": empty}, "authority", "has no certificate"),
        ({"authority": foreign.authority}, "authority", "has not signed"),
        ({"certificate": nothing}, "certificate", "cannot be read"),
        ({"private_key": nothing}, "private_key", "cannot be read"),
        ({"private_key": foreign.private_key}, "private_key", "the key is that of another"),
        ({"private_key": empty}, "private_key", "expected PEM files that belong together"),
    ):
        with pytest.raises(TlsProblem, match=said) as refused:
            replace(files, **changed).check(["127.0.0.1"])
        assert refused.value.key == key, changed


def test_a_path_may_name_the_host(
    tmp_path: Path, files: RunTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(files.certificate or "", tmp_path / "10.0.0.7.pem")
    shutil.copy(files.private_key or "", tmp_path / "10.0.0.7.key")
    named = RunTls(files.authority, tmp_path / "{host}.pem", tmp_path / "{host}.key")
    monkeypatch.setenv(HOST_ADDRESS, "10.0.0.8")
    with pytest.raises(TlsProblem, match=r"10\.0\.0\.8\.pem cannot be read"):
        named.check(["127.0.0.1"])
    monkeypatch.setenv(HOST_ADDRESS, "10.0.0.7")
    assert named.check(["127.0.0.1"]) > 0


def test_a_child_inherits_it(files: RunTls) -> None:
    given = replace(files, client_certificates=True)
    with in_process(given):
        assert of_process() == given
        with in_process(RunTls(files.authority)):
            assert of_process() == RunTls(files.authority)
    assert of_process() is None
