"""The address in an announcement, before anything is done with it."""

from __future__ import annotations

import contextlib
import re
from urllib.parse import SplitResult, urlsplit

from astraflow_weights.failures import PublisherFailed

_PRINTABLE = re.compile(r"[!-~]{1,4096}")


def printable(endpoint: str) -> bool:
    """Whether it has no other characters than an address may have: no spaces, line ends, zeros or non-ASCII."""
    return _PRINTABLE.fullmatch(endpoint) is not None


def address_of(endpoint: str, *schemes: str) -> SplitResult:
    """An endpoint with one of ``schemes`` and a host that can be looked up. Raises :class:`PublisherFailed`."""
    with contextlib.suppress(ValueError):
        address = urlsplit(endpoint)
        host, port = address.hostname or "", address.port
        host.encode(
            "idna"
        )  # as connecting does, which raises no OSError for a label of 70 characters
        if printable(endpoint) and address.scheme in schemes and host and port != 0:
            return address
    raise PublisherFailed(f"expected an address such as {schemes[0]}://host:port")
