from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.types import Announcement, ComponentContext, ExportedTensor, RunInfo
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.kernel_numpy import NumpyKernel
from astraflow_plugin_delta.config import DeltaConfig
from astraflow_plugin_delta.receiver import DeltaReceiver
from astraflow_plugin_delta.transport import DeltaPublisher, DeltaTransport

TOKEN = "a-token-of-the-run"


class Rig:
    """Publishers and receivers that are closed when the test ends."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack

    def transport(self, **keys: Any) -> DeltaTransport:
        run = RunInfo("test", 0, 1, 0, ("solver",), self.folder)
        context = ComponentContext(run, "raas", "solver", 0, self.folder / "state", TOKEN)
        return DeltaTransport(DeltaConfig(**({"kernel": "numpy"} | keys)), context)

    def publisher(self, **keys: Any) -> DeltaPublisher:
        return self.stack.enter_context(closing(self.transport(**keys).publisher()))

    def receiver(self, **keys: Any) -> DeltaReceiver:
        return self.stack.enter_context(closing(self.transport(**keys).receiver()))


class History:
    """Versions of a model, each a small update of the one before, on offer at a publisher."""

    def __init__(self, publisher: DeltaPublisher, blocks: int = 3) -> None:
        self.publisher = publisher
        self.weights = np.random.default_rng(0).integers(
            0, 2**16, (blocks << 20) + 77, dtype=np.uint16
        )
        self.contents: dict[int, bytes] = {}
        self.told: dict[int, Announcement] = {}
        self.version = 0

    def publish(self, density: float = 0.01) -> Announcement:
        """The next version."""
        generator = np.random.default_rng(self.version)
        self.version += 1
        if self.version > 1:
            changed = np.flatnonzero(generator.random(self.weights.size) < density)
            size = generator.geometric(0.9, changed.size) * generator.choice([-1, 1], changed.size)
            self.weights[changed] += size.astype(np.uint16)
        tensors = [ExportedTensor("model.weight", "BF16", self.weights.shape, self.weights)]
        manifest = self.publisher.publish(self.version, tensors, self.version - 1 or None)
        self.publisher.retain(frozenset())
        self.contents[self.version] = self.weights.tobytes()
        told = Announcement(
            "solver",
            self.version,
            "delta",
            self.publisher.endpoints,
            manifest.digest,
            manifest.size,
        )
        self.told[self.version] = told
        return told

    def check(self, source: Any, version: int) -> None:
        """The source is this version, bit by bit."""
        assert source.version == version
        assert source.path.read_bytes().endswith(self.contents[version])


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(tmp_path, stack)


@pytest.fixture
def history() -> type[History]:
    return History


@pytest.fixture
def numpy_codec() -> Codec:
    return Codec(NumpyKernel())


@pytest.fixture
def within() -> Callable[[Callable[[], Any], float], Any]:
    """Run in a thread that must end within so many seconds."""

    def run(act: Callable[[], Any], deadline_s: float) -> Any:
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(act()), daemon=True)
        thread.start()
        thread.join(deadline_s)
        assert not thread.is_alive(), "it hangs"
        return result[0]

    return run
