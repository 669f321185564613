"""A run with ``[tls]`` whose dataflow cannot be trusted is shown as one that does not answer, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astraflow_contrib_pages.running_run import RunningRun
from astraflow_core.errors import Refused
from astraflow_testing.tls_files import write_tls


def running(folder: Path, url: str) -> RunningRun:
    """A run whose files have ``url``."""
    (folder / "config.toml").write_text(
        f'[tls]\nauthority = "{folder}/authority.pem"\ncertificate = "{folder}/own.pem"\n'
        f'private_key = "{folder}/own.key"\n'
    )
    (folder / "dataflow.json").write_text(json.dumps({"url": url, "pid": 1}))
    run: Any = SimpleNamespace(path=folder, name="solver", read=lambda _: {"url": url})
    return RunningRun(run, "a-token")


@pytest.mark.parametrize(
    ("written", "url", "reason"),
    [
        (False, "https://127.0.0.1:9", r"authority\.pem cannot be read"),
        (True, "http://127.0.0.1:9", "would be called in clear text"),
    ],
)
def test_the_reason_is_shown(tmp_path: Path, written: bool, url: str, reason: str) -> None:
    if written:
        write_tls(tmp_path)
    with pytest.raises(Refused, match=reason) as refused:
        running(tmp_path, url).ask("status")
    assert refused.value.status == 503
