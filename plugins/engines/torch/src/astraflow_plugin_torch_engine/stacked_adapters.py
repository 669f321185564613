"""Several LoRA adapters of one base at once: each row of a batch has its own, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch.nn import functional

from astraflow_core.errors import UserError, WeightsError, WrongVersion
from astraflow_core.types import GenerateRequest, WeightSource
from astraflow_plugin_torch_engine.adapters import AdapterBase

MOST = 64
"""Adapters at once."""
NONE = 0
"""The number of no adapter."""
Factors = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Of each module: ``A`` ``[rank, in]`` and ``B`` ``[out, rank]``, with the scale in ``B``."""


_Part = tuple[int, int, torch.Tensor | None]
"""The first rank, the one after the last, and which of them are of another adapter than that of a row."""
_Layout = tuple[tuple[int, int, int], ...]
"""Numbers of adapters that lie side by side, each with its first rank and the one after its last."""


@dataclass(frozen=True)
class PreparedAdapter:
    """An adapter that fits, on the model's device."""

    version: int
    base: str | None
    rank: int
    factors: Factors


class StackedAdapters:
    """Adds ``B A x`` to what the modules compute, each row with the factors of its adapter (Hu et al. 2021, arXiv:2106.09685).

    The factors of those in use that change a module lie side by side, so that it needs two products for all of them: ``A x`` of
    every adapter, of which a row keeps its own part, and ``B`` of that. Only those between the first and the last that a pass uses are
    multiplied, without a mask if that is one. Adapters are known by numbers, which are never used twice: a name stands for
    another number when its adapter is replaced, and rows keep theirs. ``running`` returns the numbers of all rows; ``newest`` is
    the number and the version of requests that name none, -1 if that is the version of the weights.
    """

    def __init__(
        self,
        base: AdapterBase,
        model: Any,
        device: torch.device,
        running: Callable[[], npt.NDArray[np.int64]],
    ) -> None:
        self._base, self._model, self._device, self._running = base, model, device, running
        self.newest = NONE, -1
        self._names: dict[str, int] = {}
        self._loaded: dict[int, PreparedAdapter] = {}
        self._laid: frozenset[int] = frozenset()
        self._last = NONE
        self._stacks: dict[str, tuple[_Layout, torch.Tensor, torch.Tensor]] = {}
        """Of each module: the adapters that change it, and their factors."""
        self._hooks: dict[str, Any] = {}
        self._rows: list[int] = []
        """The adapters of the rows of a pass that has any, which are tokens if it is ``packed``."""
        self._packed = False
        self._parts: dict[_Layout, _Part | None] = {}
        """What such a pass multiplies of factors that lie so."""

    @property
    def known(self) -> bool:
        """Whether requests may name one."""
        return bool(self._names)

    # From any thread

    def prepare(self, source: WeightSource) -> PreparedAdapter:
        """Read an adapter; :class:`WeightsError` unless it fits and its numbers are finite."""
        shape = self._base.check(source)
        given = load_file(source.path)
        modules, factors = dict(self._model.named_modules()), Factors()
        for name in shape.modules:
            module = modules.get(name)
            if not isinstance(module, torch.nn.Linear):
                raise WeightsError(
                    f"version {source.version} adapts {name}, of which engine 'torch' merges adapters only: load them one at a "
                    "time, as versions, with live_adapters = 0"
                )
            a, b = (
                given[f"base_model.model.{name}.lora_{side}.weight"].to(
                    self._device, module.weight.dtype
                )
                for side in "AB"
            )
            if not (a.isfinite().all() and b.isfinite().all()):
                raise WeightsError(f"version {source.version}: the adapter of {name} is not finite")
            factors[name] = a, b
        return PreparedAdapter(source.version, source.base, shape.rank, factors)

    # From the thread that decodes

    def install(self, name: str, adapter: PreparedAdapter | None) -> None:
        """Give ``name`` to an adapter, or to none. Adapters without a name go unless a row has them."""
        if adapter is not None:
            if name not in self._names and len(self._names) >= MOST:
                raise UserError(f"engine 'torch' has {MOST} adapters, as many as it may; drop one")
            self._names[name] = self.add(adapter)
        else:
            self._names.pop(name, None)
        self.forget()

    def add(self, adapter: PreparedAdapter) -> int:
        """Add an adapter; returns its number."""
        self._last += 1
        self._loaded[self._last] = adapter
        return self._last

    def forget(self) -> None:
        """Drop those without a name, except the newest, that no row has."""
        kept = {self.newest[0], *self._names.values()}
        if self._loaded.keys() <= kept:
            return
        kept.update(self._running().tolist())
        self._loaded = {number: each for number, each in self._loaded.items() if number in kept}
        if not self._loaded:
            self._lay([])

    def clear(self) -> None:
        """Take all names away: another version is loaded."""
        self._names.clear()
        self.forget()

    def held(self, name: str) -> tuple[int, int]:
        """Number and version of the adapter that has the name now; :class:`WrongVersion` if none has."""
        if not name:
            return self.newest
        number = self._names.get(name)
        if number is None:
            raise WrongVersion(
                f"the adapter {name!r} is not loaded; engine 'torch' has {', '.join(sorted(self._names)) or 'none'}"
            )
        return number, self._loaded[number].version

    def refusal(self, request: GenerateRequest, version: int) -> WrongVersion | None:
        """Why a request cannot be served, which has ``version`` unless it names an adapter."""
        try:
            _, own = self.held(request.adapter)
        except WrongVersion as error:
            return WrongVersion(f"request {request.id!r}: {error}")
        served = own if request.adapter else version
        if request.pinned_version in (None, served):
            return None
        return WrongVersion(
            f"request {request.id!r} is pinned to version {request.pinned_version}; engine 'torch' serves version {served}"
        )

    @contextlib.contextmanager
    def using(self, numbers: npt.NDArray[np.int64], packed: bool = False) -> Iterator[None]:
        """Forward passes meanwhile have rows with the adapters ``numbers``; ``packed``: one row, whose tokens have them."""
        if self._loaded and numbers.any():
            used = set(numbers.tolist()) - {NONE}
            if not used <= self._laid:
                self._lay(sorted((used | set(self._running().tolist())) - {NONE}))
            self._rows, self._packed = numbers.tolist(), packed
        try:
            yield
        finally:
            self._rows, self._parts = [], {}

    def _part_of(self, layout: _Layout) -> _Part | None:
        """``None`` if no row has one of these adapters."""
        if layout not in self._parts:
            self._parts[layout] = self._find_part(layout)
        return self._parts[layout]

    def _find_part(self, layout: _Layout) -> _Part | None:
        rows = set(self._rows)
        places = {number: (start, end) for number, start, end in layout if number in rows}
        if not places:
            return None
        start = min(place[0] for place in places.values())
        end = max(place[1] for place in places.values())
        if len(rows) == 1:
            return start, end, None
        own = torch.tensor(
            [places.get(number, (0, 0)) for number in self._rows], device=self._device
        )
        column = torch.arange(start, end, device=self._device)
        foreign = (column < own[:, :1]) | (column >= own[:, 1:])
        return start, end, foreign[None] if self._packed else foreign[:, None]

    def _lay(self, numbers: list[int]) -> None:
        """Lay the factors of these adapters side by side, for each module of those that change it."""
        self._laid = frozenset(numbers)
        users: dict[str, list[int]] = {}
        for number in numbers:
            for name in self._loaded[number].factors:
                users.setdefault(name, []).append(number)
        self._stacks = {
            name: (self._layout(each), *self._beside(name, each)) for name, each in users.items()
        }
        for name in self._hooks.keys() - users.keys():
            self._hooks.pop(name).remove()
        modules = dict(self._model.named_modules()) if users.keys() - self._hooks.keys() else {}
        for name in users.keys() - self._hooks.keys():
            self._hooks[name] = modules[name].register_forward_hook(self._adapted(name))

    def _layout(self, numbers: list[int]) -> _Layout:
        ends = np.cumsum([self._loaded[number].rank for number in numbers]).tolist()
        return tuple(zip(numbers, [0, *ends[:-1]], ends, strict=True))

    def _beside(self, name: str, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [self._loaded[number].factors[name] for number in numbers]
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs], 1)

    def _adapted(self, name: str) -> Any:
        def hook(module: Any, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
            if not self._rows:
                return None
            layout, a, b = self._stacks[name]
            part = self._part_of(layout)
            if part is None:
                return None
            start, end, foreign = part
            inner = functional.linear(given[0], a[start:end])
            if foreign is not None:
                if inner.dim() != foreign.dim():
                    raise UserError(
                        f"engine 'torch' cannot distinguish the rows of a batch in {name}: load its adapters one at a time, as "
                        "versions, with live_adapters = 0"
                    )
                inner = inner.masked_fill(foreign, 0)
            return output + functional.linear(inner, b[:, start:end])

        return hook
