"""Reads an index from a folder, a file or a URL."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from stat import S_ISREG

import msgspec

from astraflow_core.errors import UserError
from astraflow_runtime.cli.installation.plugin_index.entries import PluginIndex, readable

FILE = "index.json"
LARGEST = 1 << 24
DEADLINE_S = 15.0
_CHUNK = 1 << 16


def read_index(place: str, deadline_s: float = DEADLINE_S) -> PluginIndex:
    """Raises :class:`UserError` if there is none, it is too large, or the server takes too long."""
    if "://" in place:
        content = _fetched(place, deadline_s)
    else:
        file = Path(place) / FILE if Path(place).is_dir() else Path(place)
        content = _content_of(file, place)
    if len(content) > LARGEST:
        raise UserError(f"--index {place}: more than {LARGEST >> 20} MiB")
    try:
        return msgspec.json.decode(content, type=PluginIndex)
    except msgspec.ValidationError as error:
        told = readable(str(error))
        raise UserError(f"--index {place}: it is not an index of plugins: {told}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"--index {place}: it is not an index of plugins: not valid JSON: {error}"
        ) from error


def _content_of(file: Path, place: str) -> bytes:
    """At most ``LARGEST`` bytes and one. A pipe is not opened: it may never have a writer."""
    how = "`astraflow plugins index` makes one"
    try:
        if not S_ISREG(file.stat().st_mode):
            raise UserError(f"--index {place}: {file} is not a file; {how}")
        with file.open("rb") as opened:
            return opened.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"--index {place}: {file}: {error.strerror}; {how}") from error


def _fetched(url: str, deadline_s: float) -> bytes:
    """At most ``LARGEST`` bytes and one."""
    who = f"--index {url}"
    if not is_web(url):
        raise UserError(f"{who}: expected a folder, or a URL that begins with http:// or https://")
    address = url if url.endswith(".json") else f"{url.rstrip('/')}/{FILE}"
    return fetch(address, who, deadline_s, LARGEST).content


def is_web(url: str) -> bool:
    """Whether it begins with ``http://`` or ``https://``."""
    return url.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class Fetched:
    """A reply: its body, its content type without parameters, and the address that gave it after redirections."""

    content: bytes
    kind: str
    address: str


def fetch(address: str, who: str, deadline_s: float, most: int, accept: str = "*/*") -> Fetched:
    """At most ``most`` bytes and one; HTTP only, also where it redirects. Raises :class:`UserError`, which begins with ``who``,
    if there is no reply within the deadline."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    opener.addheaders = [("Accept", accept), ("User-Agent", "astraflow")]
    until = time.monotonic() + deadline_s
    parts: list[bytes] = []
    try:
        with opener.open(address, timeout=deadline_s) as reply:
            kind, last = reply.headers.get_content_type(), reply.geturl()
            while sum(map(len, parts)) <= most and (part := reply.read1(_CHUNK)):
                parts.append(part)
                if time.monotonic() > until:
                    raise TimeoutError
    except TimeoutError as error:
        raise UserError(f"{who}: {address} took longer than {deadline_s:g} s") from error
    except (urllib.error.URLError, HTTPException, OSError, ValueError) as error:
        raise UserError(f"{who}: {address}: {error}") from error
    return Fetched(b"".join(parts), kind, last)
