"""The transport ``sample_thing``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import WeightsError
from astraflow_core.types import ComponentContext, ExportedTensor, Manifest
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.landing import BlockFile, BlockReceiver
from astraflow_weights.snapshot import Snapshotter
from astraflow_wire.host.private_folder import PrivateFolder, is_held


class SampleThingConfig(ConfigModel):
    """``transport = { use = "sample_thing" }``"""

    path: str = Field(
        "",
        pattern="^(/.*)?$",
        description="Absolute path of a folder, in which each publisher has a subfolder. Default: 'weights' in the "
        "directory of the run.",
    )


class SampleThing:
    """Versions as two files each, in a folder that trainer and RaaS share."""

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._path = Path(config.path or context.run.directory / "weights")
        self._context = context

    def publisher(self) -> FilePublisher:
        """The trainer's half."""
        return FilePublisher(self._context.policy, self._path)

    def receiver(self) -> BlockReceiver:
        """The half of a RaaS; what it received is in the folder of the component."""
        return BlockReceiver(
            self._context.directory,
            lambda told, endpoint: FileSource(self._path, told.version, Path(endpoint)),
        )


class FilePublisher:
    """Writes ``N.data`` and ``N.manifest``; its folder is removed when its process ends, however that happens."""

    def __init__(self, policy: str, path: Path) -> None:
        self._folder = PrivateFolder(path, f"{policy}-")
        self._snapshotter = Snapshotter(policy)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The folder."""
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
            self._remove(version)
            raise WeightsError(f"version {version} cannot be written: {error}") from error
        finally:
            self._snapshotter.recycle(snapshot.data)
        return snapshot.manifest

    def retain(self, versions: frozenset[int]) -> None:
        """Remove the other versions; a receiver that has opened one can still read it."""
        kept = versions | {self._snapshotter.newest}
        for file in self._folder.path.glob("*.data"):
            if int(file.stem) not in kept:
                self._remove(int(file.stem))

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()
        self._snapshotter.close()

    def _file(self, version: int, kind: str) -> Path:
        return self._folder.path / f"{version}.{kind}"

    def _remove(self, version: int) -> None:
        for kind in ("manifest", "data"):
            self._file(version, kind).unlink(missing_ok=True)


class FileSource:
    """One version of a publisher, during one fetch."""

    def __init__(self, path: Path, version: int, folder: Path) -> None:
        if folder.parent != path or not is_held(folder):
            raise PublisherFailed(f"no running publisher has this folder in {path}")
        try:
            self._manifest = (folder / f"{version}.manifest").read_bytes()
            self._data = (folder / f"{version}.data").open("rb")
        except OSError as error:
            raise PublisherFailed(f"it has no version {version}: {error.strerror}") from error

    def manifest(self, landing: BlockFile) -> bytes:
        """As the publisher encoded it."""
        return self._manifest

    def deliver(self, manifest: Manifest, landing: BlockFile) -> None:
        """Land every block; a wrong one is read again, until the landing gives up."""
        for block in landing.missing():
            landed = False
            while not landed:
                landing.time_left()  # raises at the deadline
                self._data.seek(block * manifest.block_size)
                landed = landing.land(block, self._data.read(manifest.block_size))

    def close(self) -> None:
        """Close the file."""
        self._data.close()
