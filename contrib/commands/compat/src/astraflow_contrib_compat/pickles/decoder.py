"""Decodes untrusted pickles in a sandboxed process, and rebuilds their contents from plain values."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import WireError
from astraflow_sandbox.code_runner import ProgramLimits, SandboxFailed
from astraflow_sandbox.subprocess_runner import WarmRunner

PACKAGE = "astraflow_contrib_compat"
GUEST = f"{PACKAGE}.pickles.guest"
PROGRAM = f"from {GUEST} import main\nmain()\n"
DEADLINE_S = 60.0
_DTYPES = {
    "b1": "?", "i1": "i1", "i2": "<i2", "i4": "<i4", "i8": "<i8", "u1": "u1", "u2": "<u2", "u4": "<u4", "u8": "<u8",
    "f2": "<f2", "f4": "<f4", "f8": "<f8", "bf16": "<u2",
}  # fmt: skip


class PickleRefused(WireError):
    """A pickle that is not decoded; the message says why."""


class PickleDecoder:
    """Decodes pickles of up to ``most_bytes`` in processes of a sandbox that have no network and no files, ``memory_mb`` of
    address space, ``cpu_s`` seconds of processor time and :data:`DEADLINE_S` of wall time. Each pickle has a separate
    process, forked from one that is warm; one is decoded at a time."""

    def __init__(self, most_bytes: int, memory_mb: int = 512, cpu_s: int = 10) -> None:
        self.most_bytes = most_bytes
        megabytes = 1 + 2 * most_bytes // (1 << 20)
        limits = ProgramLimits(
            cpu_s=cpu_s,
            deadline_s=DEADLINE_S,
            memory_mb=memory_mb + 6 * megabytes,
            file_mb=megabytes,
            output_bytes=4 * most_bytes + (1 << 16),
        )
        self._runner = WarmRunner(limits, at_once=1, packages=[PACKAGE, GUEST])

    def check(self) -> None:
        """Whether this host can confine the process; raises :class:`astraflow_core.errors.PreflightError` with what it
        lacks."""
        self._runner.check()

    def close(self) -> None:
        """End the processes."""
        self._runner.close()

    async def decode(self, data: bytes) -> Any:
        """The value of a pickle: None, bool, int, float, str, bytes, list, dict, and numpy arrays in place of arrays
        and tensors. :class:`PickleRefused` for anything else."""
        if len(data) > self.most_bytes:
            raise PickleRefused(
                f"the pickle was refused: {len(data)} bytes, the limit is {self.most_bytes}"
            )
        try:
            ended = await self._runner.run(PROGRAM, base64.b64encode(data).decode("ascii"))
        except SandboxFailed as error:
            raise PickleRefused(f"the pickle was not decoded: {error}") from error
        if ended.ending != "exited":
            what = {"cpu": "processor time", "deadline": "time", "output": "output"}[ended.ending]
            raise PickleRefused(f"the pickle was refused: it takes more {what} than a message may")
        if ended.code:
            said = ended.stderr.strip().rpartition("\n")[2] or f"exit code {ended.code}"
            raise PickleRefused(f"the pickle was refused: its process ended ({said[:200]})")
        return self._value(ended.stdout)

    def _value(self, out: str) -> Any:
        head, *rest = out.split("\n")
        try:
            answer = json.loads(head)
            if "refused" in answer:
                raise PickleRefused(f"the pickle was refused: {answer['refused']}")
            buffers = [base64.b64decode(text) for text in rest[: len(answer["buffers"])]]
            return _Rebuilding(buffers, self.most_bytes).value(answer["value"])
        except (
            KeyError,
            IndexError,
            TypeError,
            ValueError,
            RecursionError,
            binascii.Error,
        ) as error:
            raise PickleRefused(f"the pickle was refused: {error}") from error


class _Rebuilding:
    """Makes values of tagged lists. All arrays together take ``most_bytes``: a tensor of one element may say that it has a
    million, and a list may hold it a thousand times."""

    def __init__(self, buffers: list[bytes], most_bytes: int) -> None:
        self._buffers, self._most = buffers, most_bytes
        self._left = most_bytes

    def value(self, told: list[Any]) -> Any:
        match told:
            case ["v", value]:
                return value
            case ["l", items]:
                return [self.value(item) for item in items]
            case ["d", pairs]:
                keys = [self.value(key) for key, _ in pairs]
                if not all(isinstance(key, str | int | bool | None) for key in keys):
                    raise ValueError("a dict whose keys are not plain")
                values = (self.value(value) for _, value in pairs)
                return dict(zip(keys, values, strict=True))
            case ["b", at]:
                return self._buffers[at]
            case ["a", dtype, shape, strides, offset, order, at]:
                return self._array(dtype, shape, strides, offset, order, self._buffers[at])
        raise ValueError(f"a value of an unknown form {str(told)[:80]}")

    def _array(
        self,
        name: str,
        shape: list[int],
        strides: list[int] | None,
        offset: int,
        order: str,
        raw: bytes,
    ) -> npt.NDArray[Any]:
        dtype = np.dtype(_DTYPES[name])
        count = math.prod(shape)
        if min(shape, default=0) < 0 or len(shape) > 8:
            raise ValueError(f"an array of shape {str(shape)[:80]}")
        self._left -= count * dtype.itemsize
        if self._left < 0:
            raise ValueError(f"its arrays take more than {self._most} bytes together")
        flat = np.frombuffer(raw, dtype)
        if strides is None:
            if flat.size != count:
                raise ValueError(f"an array of shape {shape} with {flat.size} elements")
            found = flat.reshape(shape, order="F" if order == "F" else "C")
        else:
            last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
            if count and (offset < 0 or min(strides, default=0) < 0 or last >= flat.size):
                raise ValueError("a tensor that reaches beyond its storage")
            steps = [step * dtype.itemsize for step in strides]
            view = np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False)
            found = view.copy() if count else np.empty(shape, dtype)
        if name == "bf16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        return found
