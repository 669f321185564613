"""The address at which a command serves, TLS beyond loopback, and the file of a token."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from astraflow_core.errors import UserError
from astraflow_runtime.cli.running.listening import kept_token, listen_address, listen_tls


def test_where_it_listens() -> None:
    assert listen_address("[::1]:80", "--http", "h:1") == ("::1", 80)
    for wrong in ("here", "a:b", "u@h:1", "h:1/x", ":80", ""):
        with pytest.raises(UserError, match=rf"--http '{wrong}': expected HOST:PORT, such as h:1"):
            listen_address(wrong, "--http", "h:1")


def test_beyond_loopback_only_with_tls() -> None:
    assert listen_tls("127.0.0.1", "--http", "token", None, None) is None
    with pytest.raises(UserError, match=r"--http 0.0.0.0 .* the token would travel in clear text"):
        listen_tls("0.0.0.0", "--http", "token", None, None)


def test_a_token_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = kept_token(file, "tml-")
    assert token.startswith("tml-") and len(token) > 40 and kept_token(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(UserError, match="cannot be written"):
        kept_token(tmp_path / "missing" / "token")
