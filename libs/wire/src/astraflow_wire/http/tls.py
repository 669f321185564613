"""TLS between the processes of a run: which certificates are trusted and presented, and why a connection fails.

A process has the TLS of its environment (:data:`AUTHORITY` and the variables next to it), which its children inherit, so
that every listener and client uses it without configuration.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from astraflow_core.errors import UserError
from astraflow_wire.http.listening import HOST_ADDRESS

AUTHORITY = "ASTRAFLOW_TLS_AUTHORITY"
CERTIFICATE = "ASTRAFLOW_TLS_CERTIFICATE"
PRIVATE_KEY = "ASTRAFLOW_TLS_PRIVATE_KEY"
CLIENT_CERTIFICATES = "ASTRAFLOW_TLS_CLIENT_CERTIFICATES"
HOST = "{host}"
"""In the path of a certificate or key: the address of this host, as its launcher says, or its name."""

log = logging.getLogger("astraflow.wire")
_REVOCATIONS = b"-----BEGIN X509 CRL-----"
"""In the file of an authority: the certificates that it has revoked follow."""
HANDSHAKE = 0x16
"""First byte of a connection that begins with TLS."""
HTTPS_ONLY = "this service speaks HTTPS only: use https:// and the authority of its run or pool"
_HTTPS_ONLY_BODY = b'{"error":"' + HTTPS_ONLY.encode() + b'"}'
PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: "
    + str(len(_HTTPS_ONLY_BODY)).encode()
    + b"\r\nconnection: close\r\n\r\n"
    + _HTTPS_ONLY_BODY
)
"""To a peer that begins with something else."""
_EXPIRED, _NOT_YET, _REVOKED = 10, 9, 23
_OTHER_NAME = (62, 64)
_OF_OUR_CERTIFICATE = (
    "CERTIFICATE_REQUIRED",
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
)
"""Error codes of X509_verify_cert."""
_LOOK_S, _ALERT_S = 5.0, 0.5
_NEW = "make new ones with `astraflow certs DIR --host NAME`"


class TlsProblem(UserError):
    """Files of ``[tls]`` that cannot be used. ``key`` is the one to change."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        super().__init__(text)


class UntrustedPeer(UserError):
    """A peer is not who was expected, or does not take us for one of the run. Another attempt would not help."""


@dataclass(frozen=True, slots=True)
class RunTls:
    """The files of ``[tls]``. A client of a run without ``client_certificates`` needs the ``authority`` only."""

    authority: Path
    certificate: Path | None = None
    private_key: Path | None = None
    client_certificates: bool = False

    def write_to(self, environment: MutableMapping[str, str]) -> None:
        """Give it to a process by its environment."""
        _clear(environment)
        environment[AUTHORITY] = str(self.authority)
        if self.certificate is not None and self.private_key is not None:
            environment[CERTIFICATE] = str(self.certificate)
            environment[PRIVATE_KEY] = str(self.private_key)
        if self.client_certificates:
            environment[CLIENT_CERTIFICATES] = "1"

    def server_context(self) -> ssl.SSLContext:
        """What a listener needs. Raises :class:`TlsProblem`."""
        return _server_context(self)

    def client_context(self) -> ssl.SSLContext:
        """What a client needs: it trusts certificates of the authority and no others. Raises :class:`TlsProblem`."""
        return _client_context(self)

    def own_files(self) -> tuple[Path, Path]:
        """Certificate and key on this host. Raises :class:`TlsProblem` if there are none."""
        if self.certificate is None or self.private_key is None:
            raise TlsProblem(
                "certificate",
                f"a service needs a certificate: set {CERTIFICATE} and {PRIVATE_KEY}, or the table [tls]",
            )
        return _here(self.certificate), _here(self.private_key)

    def check(self, hosts: Iterable[str]) -> float:
        """Shake hands with ourselves as each of ``hosts``; how many days remain until a certificate expires. Raises
        :class:`TlsProblem`."""
        return min(_days_left(self, host) for host in hosts)


def of_process() -> RunTls | None:
    """That of this process; ``None`` without TLS."""
    authority = os.environ.get(AUTHORITY)
    if not authority:
        return None
    shown = [Path(os.environ[key]) for key in (CERTIFICATE, PRIVATE_KEY) if os.environ.get(key)]
    if len(shown) == 1:
        raise UserError(f"set both {CERTIFICATE} and {PRIVATE_KEY}, or neither")
    certificate, private_key = shown or (None, None)
    return RunTls(
        authority=Path(authority),
        certificate=certificate,
        private_key=private_key,
        client_certificates=bool(os.environ.get(CLIENT_CERTIFICATES)),
    )


def give_process(tls: RunTls | None) -> None:
    """Let this process, and those that it starts, have ``tls`` from now on. ``None``: that of the environment stays."""
    if tls is not None:
        tls.write_to(os.environ)


def _clear(environment: MutableMapping[str, str]) -> None:
    for key in (AUTHORITY, CERTIFICATE, PRIVATE_KEY, CLIENT_CERTIFICATES):
        environment.pop(key, None)


def server_tls(host: str) -> ssl.SSLContext | None:
    """The context of a listener of this process on ``host``, an address that the certificate must cover. A connection has the files
    as they are when it begins: a certificate is renewed, and others are revoked, while the listener runs."""
    tls = of_process()
    if tls is None:
        return None
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        tls.check([host])
    context = tls.server_context()
    context.sni_callback = _Renewal(tls, context)
    return context


class _Renewal:
    """Called as each handshake begins: gives it a new context once the files have changed."""

    def __init__(self, tls: RunTls, context: ssl.SSLContext) -> None:
        self._tls, self._current = tls, context
        self._seen = self._stamps()

    def __call__(self, connection: Any, name: str | None, original: ssl.SSLContext) -> None:
        """Files that do not fit each other, such as between the writing of two, change nothing; the next connection looks again."""
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._current, self._seen = self._tls.server_context(), stamps
            except TlsProblem as problem:
                log.warning("%s; connections keep using the previous files", problem)
        connection.context = self._current

    def _stamps(self) -> list[tuple[int, int, int]]:
        stamps = []
        for file in (_here(self._tls.authority), *self._tls.own_files()):
            with suppress(FileNotFoundError):
                found = file.stat()
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return stamps


def client_tls(url: str, tls: RunTls | None = None) -> ssl.SSLContext | None:
    """The context of a client of ``url``: by ``tls``, or that of this process; ``None`` for plain HTTP, which a
    process with TLS refuses with :class:`UntrustedPeer`."""
    tls = tls or of_process()
    if urlsplit(url).scheme == "https":
        return ssl.create_default_context() if tls is None else tls.client_context()
    if tls is not None:
        raise UntrustedPeer(
            f"{url} would be called in clear text, but this run has [tls]: expected an address that begins with https://"
        )
    return None


def explained(error: BaseException | None, url: str, tls: RunTls | None = None) -> str | None:
    """What is wrong between a client of ``url`` and its server, and what to do; ``None`` if ``error`` says nothing of TLS."""
    tls = tls or of_process()
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error, url, tls)
    if not isinstance(error, ssl.SSLError) or error.reason is None:
        return None
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return f"{url} answers in plain HTTP: the process there was started without [tls]; start it with the same table"
    if any(reason in error.reason for reason in _OF_OUR_CERTIFICATE):
        return _of_own_certificate(url, tls, error.reason)
    return None


def _of_own_certificate(url: str, tls: RunTls | None, reason: str) -> str:
    if tls is None or tls.certificate is None:
        return (
            f"{url} asks for a client certificate ({reason}), since its run has tls.client_certificates = true: set {CERTIFICATE} "
            f"and {PRIVATE_KEY} to files that its authority has signed"
        )
    return f"{url} does not accept our certificate {tls.certificate} ({reason}): {_NEW}, of the authority of that run"


def why_untrusted(
    error: BaseException | None, url: str, tls: RunTls | None, ended: bool, reached: bool
) -> str | None:
    """Why a call of ``url`` failed for good; ``None`` if another attempt may help. ``ended``: the server ended the connection.
    Once a server was ``reached``, only another certificate is such a reason: a damaged record passes."""
    if reached:
        return (
            explained(error, url, tls) if isinstance(error, ssl.SSLCertVerificationError) else None
        )
    found = explained(error, url, tls)
    refused = isinstance(error, ConnectionRefusedError)
    return looked_at(url, tls) if found is None and ended and not refused else found


def looked_at(url: str, tls: RunTls | None = None) -> str | None:
    """The result of :func:`explained` after another connection to ``url`` that sends nothing. The reason for a refused client
    certificate is often lost: TLS 1.3 reports it after the handshake, a server that closes with a request unread resets the connection,
    and asyncio (3.11) does not report it at all."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    context = client_tls(url, tls)
    if context is None:
        return None
    try:
        with (
            socket.create_connection((host, port), _LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as looking,
        ):
            looking.settimeout(_ALERT_S)
            ended = not looking.recv(1)
    except OSError as error:
        return explained(error, url, tls)
    return _of_own_certificate(url, tls or of_process(), "closed") if ended else None


def _of_certificate(error: ssl.SSLCertVerificationError, url: str, tls: RunTls | None) -> str:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    which = f"{url} shows a certificate{_fingerprint(host, port)}"
    if error.verify_code in (_EXPIRED, _NOT_YET):
        when = "that has expired" if error.verify_code == _EXPIRED else "that is not valid yet"
        return f"{which} {when} by the clock of this host: {_NEW} and restart the process"
    if error.verify_code == _REVOKED:
        return f"{which} that the authority {tls.authority if tls else ''} has revoked: {_NEW} and restart the process"
    if error.verify_code in _OTHER_NAME:
        return f"{which} that is not one of {host}: {_NEW.replace('NAME', host)} and restart the process"
    if tls is None:
        return (
            f"{which} that no authority of this system has signed ({error.verify_message}): set {AUTHORITY} to the file with the "
            "certificate of the authority of that run or pool"
        )
    return (
        f"{which} that the authority {tls.authority} has not signed ({error.verify_message}): give the authority of that run or pool in "
        f"[tls] authority, or {AUTHORITY}; if the address is right and the certificates were not replaced, another party may be intercepting the connection"
    )


def _fingerprint(host: str, port: int) -> str:
    """The digest of what is shown there now, if it can be had."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        suppress(OSError),
        socket.create_connection((host, port), _LOOK_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as looking,
    ):
        return f" (SHA-256 {hashlib.sha256(looking.getpeercert(True) or b'').hexdigest()})"
    return ""


def _here(path: Path) -> Path:
    """With the address of this host in the place of :data:`HOST`."""
    return Path(str(path).replace(HOST, os.environ.get(HOST_ADDRESS) or socket.gethostname()))


def _server_context(tls: RunTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a client that resumes a session presents no certificate, and its certificate may be revoked
    _load_own(context, tls)
    if tls.client_certificates:
        _load_authority(context, tls)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _client_context(tls: RunTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_authority(context, tls)
    if tls.certificate is not None:
        _load_own(context, tls)
    return context


def _load_authority(context: ssl.SSLContext, tls: RunTls) -> None:
    _readable("authority", _here(tls.authority))
    try:
        context.load_verify_locations(_here(tls.authority))
    except ssl.SSLError as error:
        raise TlsProblem(
            "authority", f"{_here(tls.authority)} has no certificate in PEM; {_NEW}"
        ) from error
    if _REVOCATIONS in _here(tls.authority).read_bytes():
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load_own(context: ssl.SSLContext, tls: RunTls) -> None:
    certificate, private_key = tls.own_files()
    _readable("certificate", certificate)
    _readable("private_key", private_key)
    try:
        context.load_cert_chain(certificate, private_key, password="")
    except (ssl.SSLError, ValueError) as error:
        said = getattr(error, "reason", None) or str(error)
        if said == "KEY_VALUES_MISMATCH":
            said = "the key is that of another certificate"
        raise TlsProblem(
            "private_key",
            f"{private_key} cannot be used with the certificate {certificate}: {said}; expected PEM files that belong together, the "
            f"key without a password; {_NEW}",
        ) from error


def _readable(key: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise TlsProblem(
            key, f"{path} cannot be read ({error.strerror}); {_NEW}, or correct the path"
        ) from error


def _days_left(tls: RunTls, host: str) -> float:
    """Both ends in memory: what peers would find."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.client_context().wrap_bio(to_client, to_server, server_hostname=host)
    server = tls.server_context().wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            raise _unverified(tls, host, error) from error
    shown = client.getpeercert() or {}
    ends = [str(shown["notAfter"])] if "notAfter" in shown else []
    ends += [str(each["notAfter"]) for each in tls.client_context().get_ca_certs()]
    return (min(ssl.cert_time_to_seconds(end) for end in ends) - time.time()) / 86400


def _unverified(tls: RunTls, host: str, error: ssl.SSLCertVerificationError) -> TlsProblem:
    certificate, _ = tls.own_files()
    if error.verify_code in (_EXPIRED, _NOT_YET):
        when = (
            "has expired"
            if error.verify_code == _EXPIRED
            else "is not valid yet by the clock of this host"
        )
        return TlsProblem("certificate", f"{certificate}, or its authority, {when}; {_NEW}")
    if error.verify_code == _REVOKED:
        return TlsProblem(
            "certificate", f"{certificate} is revoked by {_here(tls.authority)}; {_NEW}"
        )
    if error.verify_code in _OTHER_NAME:
        return TlsProblem(
            "certificate",
            f"{certificate} does not cover {host}; {_NEW.replace('NAME', host)}, once for each address",
        )
    return TlsProblem(
        "authority",
        f"{_here(tls.authority)} has not signed {certificate} ({error.verify_message}); name the authority.pem that was made with it",
    )
