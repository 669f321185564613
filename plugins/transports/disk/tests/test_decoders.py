"""Files in a store are decoded or refused, whatever they contain, since any process may have written them."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core.errors import WireError
from astraflow_plugin_disk.places import sign, verify
from astraflow_plugin_disk.progress import NAME, StoreProgress, read_progress
from astraflow_plugin_disk.store import ObjectStore
from astraflow_plugin_disk.sweeper import ReaderLease, Sweeper
from astraflow_testing.damage import assert_refused_or_read, damaged
from astraflow_wire.decoding import from_json

LEASE = b'{"version": 3, "until": "2026-01-01T00:00:00Z", "beat": 4}'
ODD_LEASES = (b'{"version": 1e999}', b"[" * 100_000, b'{"version": "\xff"}', b"3", b"", b"{}")


def test_damaged_signed_manifests_are_refused() -> None:
    signed = sign(b"a manifest", "token", 64)
    assert verify(signed, "token") == (b"a manifest", 64)
    changed = [each for each in damaged([signed], "bytes") if each != signed]

    def read(data: bytes) -> None:
        verify(data, "token")
        raise AssertionError("a signature that was not made with the token was taken")

    assert_refused_or_read(read, changed)


def test_damaged_progress_says_nothing(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path), {})

    def read(data: bytes) -> None:
        (tmp_path / NAME).write_bytes(data)
        assert isinstance(read_progress(store), StoreProgress)
        from_json(data or b"{}", StoreProgress, "malformed")

    sound = b'{"coming": [3, 4], "failed": {"2": "no room"}, "objects": 7}'
    read(sound)
    assert_refused_or_read(read, damaged([sound], "json", count=200))


def test_damaged_leases_retain_nothing_and_block_no_publisher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def read(data: bytes) -> None:
        from_json(data, ReaderLease, "malformed")

    read(LEASE)
    assert_refused_or_read(read, damaged([LEASE], "json"))
    (tmp_path / "readers").mkdir()
    for number, lease in enumerate(ODD_LEASES):
        (tmp_path / "readers" / f"odd{number}").write_bytes(lease)
    (tmp_path / "readers" / "sound").write_bytes(LEASE)
    sweeper = Sweeper(ObjectStore(str(tmp_path), {}), "solver")
    try:
        assert sweeper._leased() == {3}
    finally:
        sweeper.close()
    assert sum("malformed" in record.getMessage() for record in caplog.records) == len(ODD_LEASES)
    with pytest.raises(WireError, match="malformed"):
        read(ODD_LEASES[0])
