"""Where a gateway listens, and whether others on the network can read the traffic."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_wire.http.auth import is_loopback
from astraflow_wire.http.tls import of_process

_ALL = ("0.0.0.0", "::")  # noqa: S104 - asked for, not bound


@dataclass(frozen=True, slots=True)
class Listening:
    """The address ``bind`` and ``port`` (0: a free one). Beyond loopback keys and conversations are encrypted, by
    ``certificate`` (with its chain) and ``private_key`` in PEM, unless ``allow_plain_text``. ``address`` is the name by
    which agents find this host, if it is not that of ``bind``; :class:`UserError` if these do not go together."""

    bind: str = "127.0.0.1"
    port: int = 0
    address: str = ""
    certificate: Path | None = None
    private_key: Path | None = None
    allow_plain_text: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise UserError("set both certificate and private_key, or neither")
        if self.certificate or self.allow_plain_text or is_loopback(self.bind):
            return
        raise UserError(
            f"bind is {self.bind!r}, which other hosts reach, so keys and conversations would be sent in clear text: "
            "set certificate and private_key, or allow_plain_text = true if you trust the network"
        )

    def tls(self) -> ssl.SSLContext | None:
        """The certificate, loaded; :class:`UserError` if it cannot be, or if a run with ``[tls]`` has none beyond loopback."""
        if self.certificate is None:
            if of_process() is not None and not is_loopback(self.bind):
                raise UserError(
                    f"bind is {self.bind!r} with allow_plain_text = true, but the run has [tls]: set certificate and private_key, "
                    "such as those of [tls]"
                )
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.private_key, password="")
        except (OSError, ValueError) as error:
            raise UserError(
                f"certificate {self.certificate} and private_key {self.private_key} cannot be used: {error}; expected "
                "PEM files that belong together, the key without a password"
            ) from error
        return context

    def url(self, port: int) -> str:
        """The URL at which agents reach a gateway that listens on ``port``."""
        host = self.address or (socket.gethostname() if self.bind in _ALL else self.bind)
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self.certificate is None else 'https'}://{shown}:{port}"
