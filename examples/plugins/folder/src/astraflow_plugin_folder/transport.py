"""Versions as two files each, in a folder of one host that its publisher holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import WeightsError
from astraflow_core.types import ComponentContext, ExportedTensor, Manifest
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.landing import BlockFile, BlockReceiver
from astraflow_weights.snapshot import Snapshotter
from astraflow_wire.host.private_folder import PrivateFolder, is_held


class FolderConfig(ConfigModel):
    """``transport = { use = "folder", path = "/…" }``"""

    path: Annotated[str, Field(pattern="^/")] = Field(
        description="Absolute path of a folder, in which each publisher has its own subfolder."
    )


class FolderTransport:
    """Gives each side its half."""

    def __init__(self, config: FolderConfig, context: ComponentContext) -> None:
        self._path, self._context = Path(config.path), context

    def publisher(self) -> FolderPublisher:
        """The trainer's half."""
        return FolderPublisher(self._context.policy, self._path)

    def receiver(self) -> BlockReceiver:
        """The RaaS's half; what it received lies in the component's own folder."""
        return BlockReceiver(
            self._context.directory,
            lambda told, endpoint: FolderSource(self._path, told.version, Path(endpoint)),
        )


class FolderPublisher:
    """Writes ``N.data`` and ``N.manifest``; the folder goes with its process, however that ends."""

    def __init__(self, policy: str, path: Path) -> None:
        self._folder = PrivateFolder(path, f"{policy}-")
        self._snapshotter = Snapshotter(policy)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The folder of this publisher."""
        return (str(self._folder.path),)

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """The version is in the folder when this returns."""
        snapshot = self._snapshotter.take(version, tensors, derives_from, base)
        try:
            self._file(version, "data").write_bytes(snapshot.data)
            self._file(version, "manifest").write_bytes(snapshot.encoded)
        except OSError as error:
            self._drop(version)
            raise WeightsError(f"version {version} cannot be written: {error}") from error
        finally:
            self._snapshotter.recycle(snapshot.data)
        return snapshot.manifest

    def retain(self, versions: frozenset[int]) -> None:
        """Remove the files of the others; a receiver that has opened them reads on."""
        kept = versions | {self._snapshotter.newest}
        for file in self._folder.path.glob("*.data"):
            if int(file.stem) not in kept:
                self._drop(int(file.stem))

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()
        self._snapshotter.close()

    def _file(self, version: int, kind: str) -> Path:
        return self._folder.path / f"{version}.{kind}"

    def _drop(self, version: int) -> None:
        for kind in ("manifest", "data"):
            self._file(version, kind).unlink(missing_ok=True)


class FolderSource:
    """One publisher's folder during one fetch."""

    def __init__(self, path: Path, version: int, folder: Path) -> None:
        if folder.parent != path or not is_held(folder):
            raise PublisherFailed(f"no living publisher has this folder in {path}")
        try:
            self._manifest = (folder / f"{version}.manifest").read_bytes()
            self._data = (folder / f"{version}.data").open("rb")
        except OSError as error:
            raise PublisherFailed(f"it has no version {version}: {error.strerror}") from error

    def manifest(self, landing: BlockFile) -> bytes:
        """In msgpack, as the publisher's snapshot had it."""
        return self._manifest

    def deliver(self, manifest: Manifest, landing: BlockFile) -> None:
        """Land every block; one that is wrong is read again, until the landing gives up."""
        for block in landing.missing():
            landed = False
            while not landed:
                landing.time_left()  # raises at the deadline
                self._data.seek(block * manifest.block_size)
                landed = landing.land(block, self._data.read(manifest.block_size))

    def close(self) -> None:
        """Close the file."""
        self._data.close()
