"""Files and notifications in shared memory are decoded or refused, whatever they contain."""

from __future__ import annotations

import msgspec
import pytest

from astraflow_plugin_shm.places import Ring, folder_of, read_ring
from astraflow_testing.damage import assert_refused_or_read, damaged
from astraflow_weights.failures import PublisherFailed


def test_damaged_rings_are_refused_or_read() -> None:
    sound = [msgspec.msgpack.encode(Ring("solver", 3, "d" * 32, 1 << 30))]
    assert read_ring(sound[0]).version == 3
    assert_refused_or_read(read_ring, damaged(sound))


@pytest.mark.parametrize(
    "endpoint",
    [
        "", "shm://", "shm://h", "shm://h/dev/shm/another", "http://h/dev/shm/astraflow-weights-a",
        "shm://h/astraflow-weights-\0", "shm://h/astraflow-weights-%00", "shm://h/%00/astraflow-weights-a",
        "shm://h/astraflow-weights-\ud800", "shm://h/astraflow-weights-é", "shm://h/a b/astraflow-weights-a",
        "shm://h/" + "a" * 5000 + "/astraflow-weights-a",
    ],
)  # fmt: skip
def test_endpoints_that_are_no_folder_are_refused(endpoint: str) -> None:
    with pytest.raises(PublisherFailed, match="expected an address such as shm://HOST"):
        folder_of(endpoint)
