"""The versions of a run that can be evaluated, each as a model folder."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, RunFailed, UserError
from astraflow_engine_host.spec import ChildSpec, child_environment, write_spec
from astraflow_runtime.cli.running.secrets import read_token
from astraflow_runtime.cli.running.weights_of import WeightsOf
from astraflow_runtime.launch.planning.plan import trainer_command
from astraflow_runtime.launch.planning.resume import summary_of
from astraflow_runtime.trainer.checkpoints.store import CheckpointFacts, Checkpoints
from astraflow_wire.host.parent import LAUNCHER

MODULE = "astraflow_runtime.trainer.checkpoint_model"
_LAST_LINES = 8


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """Which version: of that number, of that update, the ``best`` one by the run's own evaluations, or, with none of
    these, the newest."""

    version: int | None = None
    update: int | None = None
    best: bool = False

    def __str__(self) -> str:
        if self.best:
            return "best version"
        if self.update is not None:
            return f"update {self.update}"
        return "newest version" if self.version is None else f"version {self.version}"


@dataclass(frozen=True, slots=True)
class RunModel:
    """A version of one policy and where it comes from. ``update`` is ``None`` where it is not known; ``folder`` makes
    its Hugging Face folder if need be."""

    version: int
    update: int | None
    source: str
    folder: Callable[[], Path]

    def is_wanted(self, wanted: WantedVersion) -> bool:
        """Whether it is one that was asked for."""
        if wanted.best:
            return self.source == "best model"
        if wanted.update is not None:
            return self.update == wanted.update
        return wanted.version in (None, self.version)


class RunModels:
    """The models of the run in ``run``, whose ``config`` has model folders. Folders that are made lie in ``scratch``."""

    def __init__(self, run: Path, config: RunConfig, scratch: Path) -> None:
        self._run, self._config, self._scratch = run, config, scratch
        self._unreached: dict[int, str] = {}

    def choose(self, policy: str, wanted: WantedVersion) -> tuple[int | None, Path]:
        """Number and folder of a version. :class:`UserError` lists the existing ones; if one cannot
        be read, its other stored forms are tried."""
        there = sorted(self._all(policy), key=lambda model: -model.version)
        found = [model for model in there if model.is_wanted(wanted)]
        if wanted.best and not found:
            found = [model for model in there if model.source == "final model"]
        problems = []
        for model in found:
            try:
                return model.version, model.folder()
            except AstraFlowError as error:
                problems.append(f"{model.source} of version {model.version}: {error}")
        if problems:
            raise RunFailed(f"no {wanted} of policy {policy!r} is available: {'; '.join(problems)}")
        kept = ", ".join(
            dict.fromkeys(f"{model.version} ({model.source})" for model in reversed(there))
        )
        unreached = self._unreached.get(-1 if wanted.version is None else wanted.version)
        why = f" It was published, but cannot be fetched: {unreached}." if unreached else ""
        raise UserError(
            f"the run in {self._run} has no {wanted} of policy {policy!r}; versions that it has: {kept}.{why} With "
            "[checkpoint] every a run keeps more of them"
        )

    def _all(self, policy: str) -> Iterator[RunModel]:
        """Of one version the cheapest form first."""
        yield from self._final(policy)
        base = Path(self._config.policies[policy].model)
        yield RunModel(0, 0, "initial model", lambda: base)
        yield from self._announced(policy)
        yield from self._checkpoints(policy)

    def _final(self, policy: str) -> Iterator[RunModel]:
        """What an ended run has left."""
        summary = summary_of(self._run)
        if summary is None:
            return
        figures = summary["policies"][policy]
        final, best = (self._run / "models" / f"{policy}{end}" for end in ("", "-best"))
        if final.is_dir():
            version = figures["version"]
            yield RunModel(version, figures["updates"], "final model", lambda: final)
        if best.is_dir() and (version := self._best_version(policy)) is not None:
            yield RunModel(version, None, "best model", lambda: best)

    def _best_version(self, policy: str) -> int | None:
        try:
            status = msgspec.json.decode((self._run / "status.json").read_bytes())
            return int(status["best_version"]["versions"][policy])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _announced(self, policy: str) -> Iterator[RunModel]:
        """What the trainer of a running run may still have."""
        if (
            not self._config.journal.enabled
            or self._config.policies[policy].transport.use == "auto"
        ):
            return
        for row in self._weights(policy).listed():
            version = row["version"]
            if version and row["fetchable"] is not False:
                pull = partial(self._pulled, policy, version)
                yield RunModel(version, None, "published version", pull)
            else:
                self._unreached[version] = row["problem"]

    def _weights(self, policy: str) -> WeightsOf:
        return WeightsOf(self._run, policy, self._scratch, self._config.run.deadline_s)

    def _pulled(self, policy: str, version: int) -> Path:
        folder = self._scratch / f"{policy}-version-{version}"
        with self._weights(policy) as weights:
            weights.pull(version, folder)
        return folder

    def _checkpoints(self, policy: str) -> Iterator[RunModel]:
        folder = self._run / "checkpoints" / policy
        keep = self._config.checkpoint.keep
        for update, saved in Checkpoints(folder, policy, keep=keep).saved().items():
            facts = msgspec.json.decode(
                (saved / "checkpoint.json").read_bytes(), type=CheckpointFacts
            )
            write = partial(self._written, policy, update)
            yield RunModel(facts.version, update, "checkpoint", write)

    def _written(self, policy: str, update: int) -> Path:
        """The model of a checkpoint, which the trainer that saved it reads in a separate process."""
        folder = self._scratch / f"{policy}-update-{update}"
        folder.mkdir()
        spec = self._scratch / f"{policy}-update-{update}.json"
        write_spec(
            spec,
            ChildSpec(
                config=self._config.model_dump_json(),
                directory=str(self._run),
                raas="eval",
                parent=os.getpid(),
                policy=policy,
            ),
        )
        command = trainer_command(self._config.policies[policy], self._config, 0)
        deadline_s = self._config.run.start_deadline_s
        environment = {LAUNCHER: str(os.getpid())}
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [*command, "-m", MODULE, str(spec), str(update), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=child_environment(read_token(self._run / "token"), environment),
                start_new_session=True,
            )
            try:
                code = process.wait(deadline_s)
            except subprocess.TimeoutExpired as error:
                raise RunFailed(
                    f"it is not read after {deadline_s:g} s ([run] start_deadline_s)"
                ) from error
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if code != 0:
                said.seek(0)
                lines = said.read().splitlines()[-_LAST_LINES:]
                raise RunFailed("its trainer cannot read it:\n  " + "\n  ".join(lines))
        return folder
