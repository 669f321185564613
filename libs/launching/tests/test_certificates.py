"""Certificates that sign themselves, as TLS sees them."""

from __future__ import annotations

import datetime
import ssl

import pytest

from astraflow_launching.certificates import Certificate, self_signed

DAY = datetime.timedelta(days=1)


def handshake(made: Certificate, trusted: Certificate, host: str) -> None:
    """Server and client in memory, until both agree."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cadata=trusted.public.decode())
    ends = [
        made.server_context().wrap_bio(to_server, to_client, server_side=True),
        trusting.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
        if not ends:
            return
    pytest.fail("no agreement in ten rounds")


def test_a_client_that_trusts_it_reaches_the_hosts_it_names() -> None:
    made = self_signed(("127.0.0.1", "launcher"), DAY)
    handshake(made, made, "127.0.0.1")
    handshake(made, made, "launcher")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(made, made, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        handshake(made, self_signed(("127.0.0.1",), DAY), "127.0.0.1")


def test_it_is_valid_for_the_time_that_was_asked_for() -> None:
    expired = self_signed(("127.0.0.1",), -datetime.timedelta(hours=1))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(expired, expired, "127.0.0.1")
