"""The versions that a run has announced, from its journal, and access to those still available."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from astraflow_core.config.load import catalog_of, component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError, WeightsError, WireError
from astraflow_core.protocols.transport import Receiver, Transport
from astraflow_core.types import Announcement, Manifest, WeightSource
from astraflow_runtime.cli.run_directory import read_config
from astraflow_runtime.cli.running.secrets import read_token
from astraflow_runtime.dataflow.journal.entries import Announced, Entry
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.client import VersionClient
from astraflow_wire.model_files.model_digest import digest_of_model

ASK_S = 5.0
"""The timeout of the question whether a publisher has a version."""
TENSORS = "model.safetensors"


class WeightsOf:
    """One policy's versions. Fetched files are stored in ``scratch``."""

    def __init__(self, run: Path, policy: str | None, scratch: Path, deadline_s: float) -> None:
        self.run, self._scratch, self._deadline_s = run, scratch, deadline_s
        raw = read_config(run)
        try:
            self._config = RunConfig.model_validate(raw)
        except ValueError as error:
            raise UserError(
                f"{run / 'config.toml'} is not of this version of astraflow-core: {error}"
            ) from error
        self._catalog = catalog_of(raw)
        policies = self._config.policies
        if policy is None and len(policies) == 1:
            policy = next(iter(policies))
        if policy not in policies:
            asked = "which policy?" if policy is None else f"the run has no policy {policy!r};"
            raise UserError(f"{asked} give --policy; it has {', '.join(policies)}")
        self.policy = policy
        self._token = read_token(run / "token")
        announcements = _Announcements(policy)
        JournalReader.of_run(run).feed(announcements)
        self._announced = announcements.found
        self._receiver: Receiver | None = None
        self._fetched: dict[int, WeightSource] = {}
        self._silent: set[str] = set()

    def __enter__(self) -> WeightsOf:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._receiver is not None:
            self._receiver.close()

    @property
    def transport(self) -> str:
        """The name of the transport in the run's config."""
        return self._config.policies[self.policy].transport.use

    def listed(self) -> list[dict[str, Any]]:
        """Every announced version. Fields from its manifest are None if that is not available;
        ``fetchable`` is None if its transport has no publisher to ask.
        """
        rows = []
        for version, told in sorted(self._announced.items()):
            manifest, problem = self._manifest(told)
            asked = any(endpoint.startswith(("http://", "https://")) for endpoint in told.endpoints)
            rows.append(
                {
                    "version": version,
                    "bytes": told.size,
                    "digest": told.digest,
                    "kind": manifest.kind if manifest else None,
                    "derives_from": manifest.derives_from if manifest else None,
                    "blocks": len(manifest.blocks) if manifest else None,
                    "endpoints": list(told.endpoints),
                    "fetchable": manifest is not None if asked else None,
                    "problem": problem,
                }
            )
        return rows

    def verify(self, version: int, path: Path | None) -> dict[str, Any]:
        """Compare ``path``, or else a fetched copy, with the announced digest."""
        told = self._announcement(version)
        facts: dict[str, Any] = {"version": version, "digest": told.digest, "bytes": told.size}
        if path is None:
            source = self.fetch(version)
            files, what = [source.path], f"version {version}, fetched in {source.seconds:.2f} s"
        else:
            files, what = safetensors_in(path), str(path)
        try:
            found = digest_of_model(files)
        except WireError as error:
            found = f"none ({error})"
        return {**facts, "what": what, "found": found, "verified": found == told.digest}

    def fetch(self, version: int) -> WeightSource:
        """Fetch a version by the run's transport, which verifies it."""
        if version not in self._fetched:
            told = self._announcement(version)
            if self._receiver is None:
                self._receiver = self._transport().receiver()
            self._fetched[version] = self._receiver.fetch(told, self._deadline_s)
        return self._fetched[version]

    def files(self, what: str) -> list[Path]:
        """Yield the safetensors files of a version, or of a path."""
        if what.isdecimal() and not Path(what).exists():
            return [self.fetch(int(what)).path]
        return safetensors_in(Path(what))

    def pull(self, version: int, folder: Path) -> dict[str, Any]:
        """Write ``folder``: the run's model folder with the weights of that version."""
        if folder.exists():
            raise UserError(f"{folder} exists already; name a folder that does not")
        source = self.fetch(version)
        if source.kind != "full":
            raise UserError(
                f"version {version} is an adapter for the model with digest {source.base}; "
                "it cannot be written as a model folder"
            )
        partial = folder.with_name(f"{folder.name}.partial")
        try:
            partial.mkdir(parents=True)
            for file in Path(self._config.policies[self.policy].model).iterdir():
                if file.is_file() and not file.name.endswith((".safetensors", ".index.json")):
                    shutil.copy2(file, partial / file.name)
            shutil.copyfile(source.path, partial / TENSORS)
            os.rename(partial, folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise UserError(f"{folder} cannot be made: {error}") from error
        return {
            "version": version,
            "folder": str(folder),
            "digest": source.digest,
            "bytes": source.bytes_received,
            "seconds": source.seconds,
        }

    def _announcement(self, version: int) -> Announcement:
        if version not in self._announced:
            known = ", ".join(map(str, sorted(self._announced)[-8:])) or "none"
            raise UserError(
                f"policy {self.policy!r} has announced no version {version}; the newest: {known}"
            )
        return self._announced[version]

    def _manifest(self, told: Announcement) -> tuple[Manifest | None, str]:
        problem = "it was announced without an address"
        for endpoint in told.endpoints:
            if endpoint in self._silent:
                problem = _silence(endpoint)
                continue
            try:
                until = time.monotonic() + ASK_S
                with VersionClient(told, endpoint, self._token, until, failures=0) as client:
                    return client.manifest(), ""
            except PublisherFailed as error:
                problem = str(error)
            except WeightsError:  # another process may listen there by now
                self._silent.add(endpoint)
                problem = _silence(endpoint)
        return None, problem

    def _transport(self) -> Transport:
        table = self._config.policies[self.policy].transport
        context = component_context(
            self._config, self.run, "weights", self.policy, table.use, self._token
        )
        context = replace(context, directory=self._scratch)
        transport: Transport = self._catalog.build("transport", table, context)
        return transport


class _Announcements:
    """Listens for the versions of a policy that were announced."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self.found: dict[int, Announcement] = {}

    def on_entry(self, at_s: float, entry: Entry) -> None:
        if isinstance(entry, Announced) and entry.message.policy == self._policy:
            said = entry.message
            self.found[said.version] = Announcement(
                said.policy,
                said.version,
                said.transport,
                tuple(said.endpoints),
                said.digest,
                said.size,
            )


def _silence(endpoint: str) -> str:
    return f"{endpoint} did not say within {ASK_S:g} s what it has"


def safetensors_in(path: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder, or the one that ``path`` is."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UserError(f"{path} is not a safetensors file, nor a folder with one")
    return files
