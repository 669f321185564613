"""Links to exported files, which work without a key for an hour: clients fetch them with programs that know no key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from pathlib import Path
from urllib.parse import quote

from astraflow_contrib_tinker.work.store import ABOUT, Store
from astraflow_core.errors import Refused

VALID_S = 3600
SIGNED = "signed"
"""Where links lead, below the routes of the server."""


class Links:
    """Makes and checks links; those of an earlier server are not valid."""

    def __init__(self, store: Store) -> None:
        self._store, self._secret = store, secrets.token_bytes(32)

    def of(self, model_id: str, name: str, base: str) -> tuple[dict[str, str], float]:
        """For each file its link, below ``base``; and until when they are valid, in seconds since 1970."""
        saved, folder = self._store.find(
            f"tinker://{model_id}/external_weights/{name}", "external_weights"
        )
        until = int(time.time()) + VALID_S
        links = {}
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            if file.name == ABOUT:
                continue
            signature = self._signature(saved.model_id, saved.name, file.name, until)
            place = "/".join(
                quote(part, safe="") for part in (saved.model_id, saved.name, file.name)
            )
            links[file.name] = f"{base}/{SIGNED}/{place}?until={until}&signature={signature}"
        return links, float(until)

    def file(self, model_id: str, name: str, file: str, until: int, signature: str) -> Path:
        """The file of a link; :class:`Refused` if this server did not make it, or it is no longer valid."""
        expected = self._signature(model_id, name, file, until)
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise Refused(403, "this link was not made by this server; ask for links again")
        if until < time.time():
            raise Refused(403, "this link is no longer valid; ask for links again")
        path = self._store.folder(model_id, "external_weights", name) / file
        if not path.is_file():
            raise Refused(404, f"{name} of {model_id} has been removed")
        return path

    def _signature(self, *parts: str | int) -> str:
        text = "\0".join(map(str, parts)).encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()
