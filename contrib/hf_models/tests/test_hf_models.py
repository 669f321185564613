"""Models of a hub on loopback, fetched by real processes with the real library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_hub import Hub

from astraflow_contrib_hf_models.manifest import astraflow_resolve_model
from astraflow_core.errors import PreflightError

pytestmark = pytest.mark.timeout(120)

OLD, NEW = "a" * 40, "b" * 40
WEIGHTS = bytes(range(256)) * (3 << 12)
CHUNK = 1 << 20
PROGRAM = f"""
import json, sys
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = {CHUNK}  # it writes as much at once
from astraflow_contrib_hf_models.resolve import resolve
from astraflow_core.errors import AstraFlowError
exec(sys.argv[2])
try:
    found = resolve(sys.argv[1], len(sys.argv) < 4)
    print(json.dumps(found and [str(found.folder), found.pinned]))
except AstraFlowError as error:
    print(json.dumps(str(error)))
"""

FETCHED = pytest.mark.turns("contrib/hf_models/**/*.py")
"""What the processes of these tests run, with the library of the hub."""


class User:
    """Somebody with an empty cache, and a hub that has ``ada/tiny``."""

    def __init__(self, cache: Path, hub: Hub) -> None:
        self.cache, self.hub = cache, hub
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))},
            "HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*",
        }  # fmt: skip

    def start(
        self, reference: str, first: str = "", *more: str, **environment: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, reference, first, *more],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def resolve(
        self, reference: str, first: str = "", *more: str, **environment: str
    ) -> tuple[Any, str]:
        """Folder and pinned reference, or the error; and what a person reads."""
        process = self.start(reference, first, *more, **environment)
        out, said = process.communicate(timeout=100)
        assert process.returncode == 0, said
        return json.loads(out), said


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with Hub() as hub:
        files = {
            "config.json": b'{"of": "old"}',
            "model.safetensors": WEIGHTS,
            "README.md": b"read me",
            "original/model.safetensors": b"the same for others",
        }
        hub.commits = {OLD: files, NEW: {**files, "config.json": b'{"of": "new"}'}}
        hub.models = {"ada/tiny": {"main": NEW, "v1": OLD}}
        serving = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        yield User(tmp_path / "cache", hub)
        hub.go_on.set()
        hub.shutdown()
        serving.join(10)


@FETCHED
@pytest.mark.slow
def test_a_model_is_fetched_once_and_pinned_to_its_commit(user: User) -> None:
    assert user.resolve("hf:ada/tiny", "", "static")[0] is None
    assert user.hub.asked == []
    (folder, pinned), said = user.resolve("hf:ada/tiny")
    snapshot = user.cache / "hub" / "models--ada--tiny" / "snapshots" / NEW
    assert (Path(folder), pinned) == (snapshot, f"hf:ada/tiny@{NEW}")
    assert (snapshot / "model.safetensors").read_bytes() == WEIGHTS
    assert sorted(each.name for each in snapshot.iterdir()) == ["config.json", "model.safetensors"]
    assert f"hf:ada/tiny: fetching 2 files, 3.1 MB, of commit {NEW}\n" in said
    assert f"hf:ada/tiny: ready in {folder} after " in said
    user.hub.asked.clear()
    again, said = user.resolve("hf:ada/tiny")
    assert again == [folder, pinned] and said == ""
    assert not [
        path for method, path, _ in user.hub.asked if method == "GET" and "/api/" not in path
    ]
    user.hub.asked.clear()
    for reference, offline in ((pinned, "0"), ("hf:ada/tiny", "1")):
        found, said = user.resolve(reference, HF_HUB_OFFLINE=offline)
        assert found == [folder, pinned] and said == ""
    assert user.resolve("hf:ada/tiny", "", "static")[0] == [folder, pinned]
    assert user.hub.asked == [], "what is whole in the cache needs no network"


@FETCHED
@pytest.mark.slow
def test_what_a_run_began_with_stays_when_the_branch_moves(user: User) -> None:
    (old, pinned), _ = user.resolve("hf:ada/tiny@v1")
    assert pinned == f"hf:ada/tiny@{OLD}"
    user.hub.models["ada/tiny"]["v1"] = NEW
    (new, _), _ = user.resolve("hf:ada/tiny@v1")
    assert json.loads((Path(new) / "config.json").read_text()) == {"of": "new"}
    (again, _), _ = user.resolve(pinned)
    assert again == old and json.loads((Path(again) / "config.json").read_text()) == {"of": "old"}


def test_a_lost_connection_is_taken_up_where_it_ended(user: User) -> None:
    user.hub.stall_at, user.hub.breaks = 2 * CHUNK, True
    (folder, _), _ = user.resolve("hf:ada/tiny")
    assert (Path(folder) / "model.safetensors").read_bytes() == WEIGHTS
    parts = [part for _, path, part in user.hub.asked if path.startswith("/cdn/")]
    assert parts == ["", f"bytes={2 * CHUNK}-"]


@FETCHED
@pytest.mark.slow
def test_an_interrupted_call_keeps_the_files_that_are_whole(user: User) -> None:
    user.hub.stall_at = CHUNK
    process = user.start("hf:ada/tiny")
    config = user.cache / "hub" / "models--ada--tiny" / "snapshots" / NEW / "config.json"
    while not (user.hub.stalled.is_set() and config.exists()):
        assert process.poll() is None
        user.hub.stalled.wait(0.05)
    process.kill()
    process.communicate()
    user.hub.go_on.set()
    user.hub.asked.clear()
    (folder, _), _ = user.resolve("hf:ada/tiny")
    assert (Path(folder) / "model.safetensors").read_bytes() == WEIGHTS
    got = [path for method, path, _ in user.hub.asked if method == "GET" and "/api/" not in path]
    assert [path.rpartition("/")[2] for path in got] == ["model.safetensors"]


@FETCHED
@pytest.mark.slow
def test_a_wrong_name_and_a_wrong_revision_are_named(user: User) -> None:
    error, _ = user.resolve("hf:ada/none")
    assert f"{user.hub.url} has no 'ada/none', or it is private: check the name" in error
    for revision in ("v9", "c" * 40):
        error, _ = user.resolve(f"hf:ada/tiny@{revision}")
        assert f"it has no revision '{revision}'; {user.hub.url}/ada/tiny/tree/main lists" in error


@FETCHED
@pytest.mark.slow
def test_a_gated_model_needs_its_terms_accepted(user: User) -> None:
    user.hub.gated, user.hub.token = {"ada/tiny"}, "hf_secret"
    error, said = user.resolve("hf:ada/tiny")
    assert (
        f"it is gated: accept its terms at {user.hub.url}/ada/tiny, then `hf auth login`" in error
    )
    (_, pinned), said = user.resolve("hf:ada/tiny", HF_TOKEN="hf_secret")
    assert pinned.endswith(NEW) and "hf_secret" not in said


@FETCHED
@pytest.mark.slow
def test_without_a_network_the_cache_is_used_and_its_lack_is_reported(user: User) -> None:
    error, _ = user.resolve("hf:ada/tiny", HF_HUB_OFFLINE="1")
    assert (
        f"it is incomplete in the cache {user.cache / 'hub'}, and HF_HUB_OFFLINE forbids" in error
    )
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:1"}
    error, _ = user.resolve("hf:ada/tiny", **nowhere)
    assert (
        "http://127.0.0.1:1 could not be asked for it, or ended the download (ConnectError" in error
    )
    assert "set HF_HUB_OFFLINE=1" in error
    found, _ = user.resolve("hf:ada/tiny")
    again, _ = user.resolve("hf:ada/tiny", **nowhere)
    assert again == found


@FETCHED
@pytest.mark.slow
def test_a_full_disk_is_reported_before_and_during_a_download(user: User) -> None:
    small = "import shutil; shutil.disk_usage = lambda path: shutil._ntuple_diskusage(9, 9, 1000)"
    error, _ = user.resolve("hf:ada/tiny", small)
    assert "is full: 3.1 MB are needed, 0.0 MB are free; free some space" in error
    assert not [path for _, path, _ in user.hub.asked if path.startswith("/cdn/")]
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    error, _ = user.resolve("hf:ada/tiny", limit)
    assert "is full; free some space" in error and "Files that are whole are kept" in error


def test_what_is_no_reference_is_refused(tmp_path: Path) -> None:
    assert astraflow_resolve_model("pypi:x", 0, tmp_path, True) is None
    for reference in ("hf:tiny", "hf:a/b/c", "hf:a/b@", "hf:a/b@x y"):
        with pytest.raises(
            PreflightError, match="expected 'hf:OWNER/NAME' or 'hf:OWNER/NAME@REVISION'"
        ):
            astraflow_resolve_model(reference, 0, tmp_path, True)
