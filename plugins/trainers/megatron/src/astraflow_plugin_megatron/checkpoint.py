"""The whole state of a trainer in a folder that all ranks write to: safetensors and JSON, nothing that runs
code when read. Each rank writes what its optimizer holds, and reads what it needs, whichever rank wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from astraflow_core.errors import UserError
from astraflow_plugin_megatron.architecture import Architecture
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.model.optimizer import Optimizer, ParameterShard
from astraflow_plugin_megatron.model.policy import VALUE_HEAD
from astraflow_plugin_megatron.ranks import Mesh, ParallelLayout
from astraflow_plugin_megatron.weights.folder import name_of
from astraflow_plugin_megatron.weights.mapping import (
    ParameterMapping,
    adapter_entries,
    entries,
    pack,
    unpack,
    value_head,
)

STATE = "trainer.json"
FORMAT = 2
WEIGHTS = "weights"
MOMENTS = ("exp_avg", "exp_avg_sq")
RNG = "rng"


class MegatronCheckpoints:
    """Writes and reads the state of ``optimizer`` and its model, which has the architecture ``arch`` and perhaps a
    value head (``with_values``). Of one with adapters only these are written."""

    def __init__(
        self,
        optimizer: Optimizer,
        arch: Architecture,
        config: MegatronConfig,
        with_values: bool,
        mesh: Mesh,
    ) -> None:
        self._optimizer, self._arch, self._config, self._mesh = optimizer, arch, config, mesh
        self._with_values = with_values
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save(self, directory: Path, steps: int) -> None:
        """Begin to write float32 weights, moments and generators of this rank, and ``steps``, the optimizer steps
        made: all as they are now, for which a copy is made on the host."""
        self._end_of_the_last()
        names = {
            parameter: entry.names[0]
            for entry, parameter in self._local_parameters(self._plan(self._mesh.layout))
        }
        tensors, starts = {f"{RNG}/cpu": torch.get_rng_state()}, {}
        if torch.cuda.is_available():
            tensors[f"{RNG}/cuda"] = torch.cuda.get_rng_state()
        for piece in self._optimizer.pieces():
            name = names[piece.parameter]
            starts[name] = str(piece.start)
            held = {WEIGHTS: piece.main.detach()}
            for moment in MOMENTS if steps else ():
                held[moment] = piece.optimizer.state[piece.main][moment]
            for kind, tensor in held.items():
                tensors[f"{name}/{kind}"] = tensor.to("cpu", copy=True)
        facts = {**self._facts(), "steps": steps, "layout": asdict(self._mesh.layout)}
        self._writing = self._writer.submit(self._write, directory, tensors, starts, facts)

    def _write(
        self,
        directory: Path,
        tensors: dict[str, torch.Tensor],
        starts: dict[str, str],
        facts: dict[str, Any],
    ) -> None:
        save_file(tensors, directory / _file(self._mesh.rank), metadata=starts)
        if self._mesh.rank == 0:
            text = json.dumps(facts, indent=1) + "\n"
            (directory / STATE).write_text(text, encoding="utf-8")

    def finish(self, now: bool) -> bool:
        """Whether what this rank had to write is written; ``now`` waits for it. Raises what went wrong."""
        writing = self._writing
        if writing is None:
            return True
        if not now and not writing.done():
            return False
        self._writing = None
        writing.result()
        return True

    def _end_of_the_last(self) -> None:
        """An unfinished one was abandoned: its result does not matter, only that it has ended."""
        if self._writing is not None:
            wait([self._writing])
            self._writing = None

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.shutdown()

    @torch.no_grad()
    def load(self, directory: Path) -> int:
        """Restore what :meth:`save` wrote, with whatever layout of ranks, and return the optimizer steps made.
        Raises :class:`UserError` if the folder is incomplete or of another model."""
        self._end_of_the_last()
        try:
            facts = json.loads((directory / STATE).read_text(encoding="utf-8"))
            self._check(directory, facts)
            steps, saved = int(facts["steps"]), ParallelLayout(**facts["layout"])
            self._restore(_Saved(directory, saved), steps)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise UserError(
                f"{directory} is not a whole checkpoint of trainer 'megatron': {error}"
            ) from error
        return steps

    def _restore(self, saved: _Saved, steps: int) -> None:
        mesh = self._mesh
        written = {entry.sources: entry for entry in self._plan(saved.layout) if not entry.copy}
        pieces = {piece.parameter: piece for piece in self._optimizer.pieces()}
        for entry, parameter in self._local_parameters(self._plan(mesh.layout)):
            piece = pieces.get(parameter)
            for kind in (WEIGHTS, *(MOMENTS if piece and steps else ())):
                whole = self._local(saved, written[entry.sources], kind).view_as(parameter)
                if kind == WEIGHTS:
                    parameter.copy_(whole)
                if piece is not None:
                    _fill(piece, kind, whole, steps)
        if saved.layout == mesh.layout:
            generators = saved.generators(mesh.rank)
            torch.set_rng_state(generators["cpu"])
            if "cuda" in generators and torch.cuda.is_available():
                torch.cuda.set_rng_state(generators["cuda"])

    def _local(self, saved: _Saved, entry: ParameterMapping, kind: str) -> torch.Tensor:
        """What this rank has of a parameter, flat if no rank's share changed."""
        tensor, ranks = self._mesh.tensor_rank, self._mesh.layout.tensor
        if saved.layout.tensor == ranks:
            return saved.read(entry, tensor, kind)
        shares = []
        for rank in range(saved.layout.tensor):
            empty = [torch.empty(shape, device="meta") for _, shape in entry.sources]
            like = pack(entry.packing, empty, self._arch, rank, saved.layout.tensor)
            shares.append(saved.read(entry, rank, kind).view(like.shape))
        full = unpack(entry.packing, shares, self._arch)
        return pack(entry.packing, full, self._arch, tensor, ranks).contiguous()

    def _plan(self, layout: ParallelLayout) -> Iterator[ParameterMapping]:
        config = self._config
        if config.lora_rank:
            yield from adapter_entries(
                self._arch, layout.pipeline, config.lora_rank, config.lora_targets
            )
        else:
            yield from entries(self._arch, layout.pipeline, layout.expert)
        if self._with_values:
            yield from value_head(self._arch, layout.pipeline)

    def _local_parameters(
        self, plan: Iterator[ParameterMapping]
    ) -> Iterator[tuple[ParameterMapping, torch.nn.Parameter]]:
        parameters = dict(self._optimizer.model.module.named_parameters())
        for entry in plan:
            if self._mesh.holds(entry.stage, entry.part):
                yield entry, parameters[name_of(entry, parameters)]

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint and its reader must have in common."""
        architecture = {**asdict(self._arch), VALUE_HEAD: self._with_values}
        if self._config.lora_rank:
            keys = {"lora_rank", "lora_targets"}
            architecture |= self._config.model_dump(mode="json", include=keys)
            architecture["lora_scale"] = self._config.lora_scale
        return {"format": FORMAT, "architecture": architecture}

    def _check(self, directory: Path, facts: dict[str, Any]) -> None:
        if facts["format"] != FORMAT:
            raise ValueError(f"{STATE} has format {facts['format']}, expected {FORMAT}")
        here, there = self._facts()["architecture"], facts["architecture"]
        for name in here.keys() | there.keys():
            if here.get(name) != there.get(name):
                raise UserError(
                    f"checkpoint {directory} belongs to another model: {name} is {there.get(name)} there and "
                    f"{here.get(name)} here"
                )


class _Saved:
    """The files of a checkpoint that ranks of ``layout`` wrote."""

    def __init__(self, directory: Path, layout: ParallelLayout) -> None:
        self.layout = layout
        self._directory = directory
        self._files: dict[int, tuple[Any, dict[str, str]]] = {}

    def read(self, entry: ParameterMapping, tensor: int, kind: str) -> torch.Tensor:
        """What tensor parallel rank ``tensor`` had of a parameter, flat, from the pieces of its replicas."""
        name, pieces = entry.names[0], {}
        for data in range(self.layout.data):
            if entry.part not in (None, data % self.layout.expert):
                continue
            file, starts = self._open(self.layout.rank(tensor, data, entry.stage))
            if name in starts:
                pieces[int(starts[name])] = file.get_tensor(f"{name}/{kind}")
        end = 0
        for start, piece in sorted(pieces.items()):
            if start != end:
                raise ValueError(f"{name} lacks its elements {end} to {start}")
            end += piece.numel()
        return torch.cat([piece for _, piece in sorted(pieces.items())])

    def generators(self, rank: int) -> dict[str, torch.Tensor]:
        """The states of a rank's generators by device."""
        file, _ = self._open(rank)
        found = (name for name in file.keys() if name.startswith(f"{RNG}/"))  # noqa: SIM118
        return {name.removeprefix(f"{RNG}/"): file.get_tensor(name) for name in found}

    def _open(self, rank: int) -> tuple[Any, dict[str, str]]:
        if rank not in self._files:
            file: Any = safe_open(self._directory / _file(rank), "pt")
            self._files[rank] = file, file.metadata() or {}
        return self._files[rank]


def _fill(piece: ParameterShard, kind: str, whole: torch.Tensor, steps: int) -> None:
    part = whole.flatten()[piece.start : piece.start + piece.main.numel()]
    if kind == WEIGHTS:
        piece.main.copy_(part)
        return
    state = piece.optimizer.state[piece.main]
    state[kind] = torch.empty_like(piece.main).copy_(part)
    if isinstance(piece.optimizer, torch.optim.Adam):
        state["step"] = torch.tensor(float(steps))
    else:  # fused ones count the steps of a group
        for group in piece.optimizer.param_groups:
            group["step"] = steps


def _file(rank: int) -> str:
    return f"rank{rank:05d}.safetensors"
