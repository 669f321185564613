"""Requests of a gradient as the server works with them, from protobuf or from JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationError

from astraflow_contrib_tinker.wire import protobuf
from astraflow_core.errors import Refused

Array = npt.NDArray[np.generic]
MOST_DATUMS = 16_384
MOST_ELEMENTS = 1 << 24
"""Of one tensor: a sparse one is small on the wire whatever its shape."""
_DTYPES: dict[int, np.dtype[Any]] = {
    protobuf.FLOAT32: np.dtype("<f4"),
    protobuf.INT64: np.dtype("<i8"),
}
_NAMED_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "int64": np.dtype("<i8")}
_UNLISTED = {"target_tokens": -1}
"""The value of cells that a sparse tensor does not list; 0 for other keys."""


@dataclass(frozen=True, slots=True)
class Datum:
    """``tokens`` int32 ``[T]``, what a model reads; ``inputs``: name → float32 or int64, a value for each token or a row of
    such. A cell of ``target_tokens`` that is -1 asks for nothing."""

    tokens: npt.NDArray[np.int32]
    inputs: dict[str, Array]


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """What ``forward_backward`` is asked for; without ``backward`` only log-probs and the loss."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss: str
    config: dict[str, float | str]
    backward: bool


def head_of_protobuf(body: bytes) -> tuple[str, int]:
    """Model and number of a ``ForwardBackwardRequest``; :class:`Refused` with 400 if it is none."""
    head = _message(protobuf.ForwardBackwardHead(), body)
    return head.model_id, head.seq_id


def _message(empty: Any, body: bytes) -> Any:
    try:
        empty.ParseFromString(body)
    except protobuf.DecodeError as error:
        raise _bad(
            "the body is not a ForwardBackwardRequest of tinker_public.proto; JSON is sent with content-type "
            "application/json"
        ) from error
    return empty


def read_protobuf(body: bytes) -> GradientRequest:
    """A ``ForwardBackwardRequest``; :class:`Refused` with 400 if it is none."""
    asked = _message(protobuf.ForwardBackwardRequest(), body)
    config: dict[str, float | str] = {entry.key: entry.value for entry in asked.loss_fn_config}
    for entry in asked.loss_fn_config_v2:
        value = entry.value
        config[entry.key] = value.text if value.HasField("text") else value.number
    _bounded(len(asked.data))
    data = [
        Datum(
            _tokens(datum, f"data[{place}]"),
            {
                entry.key: _tensor(entry.key, entry.value, f"data[{place}].{entry.key}")
                for entry in datum.loss_fn_inputs
            },
        )
        for place, datum in enumerate(asked.data)
    ]
    return GradientRequest(
        asked.model_id, asked.seq_id, data, asked.loss_fn, config, not asked.forward_only
    )


def _tokens(datum: Any, where: str) -> npt.NDArray[np.int32]:
    parts = []
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise _bad(
                f"{where}.model_input has a chunk that is not text; this server trains on tokens"
            )
        parts.append(_from_bytes(chunk.encoded_text.tokens, np.dtype("<i4"), where))
    whole = np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else np.zeros(0)
    return whole.astype(np.int32, copy=False)


def _tensor(name: str, sent: Any, where: str) -> Array:
    dtype = _DTYPES.get(sent.dtype)
    if dtype is None:
        raise _bad(f"{where} has the dtype {sent.dtype}; expected float32 (1) or int64 (2)")
    if sent.HasField("sparse_csr"):
        csr = sent.sparse_csr
        values = _from_bytes(csr.values, dtype, where)
        index = np.dtype("<i8")
        crow, col = (
            _from_bytes(part, index, where) for part in (csr.crow_indices, csr.col_indices)
        )
        return _from_csr(name, values, crow, col, tuple(sent.shape), where)
    return _shaped(_from_bytes(sent.dense, dtype, where), tuple(sent.shape), where)


def _from_bytes(data: bytes, dtype: np.dtype[Any], where: str) -> npt.NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise _bad(
            f"{where} has {len(data)} bytes, which is not a whole number of {dtype.name} values"
        )
    return np.frombuffer(data, dtype)


def _shaped(values: npt.NDArray[Any], shape: tuple[int, ...], where: str) -> Array:
    if not shape:
        return values
    if min(shape) < 0 or math.prod(shape) != values.size or len(shape) > 2:
        raise _bad(f"{where} has the shape {list(shape)} and {values.size} values")
    return values.reshape(shape)


def _from_csr(
    name: str,
    values: npt.NDArray[Any],
    crow: npt.NDArray[np.int64],
    col: npt.NDArray[np.int64],
    shape: tuple[int, ...],
    where: str,
) -> Array:
    rows, columns = shape if len(shape) == 2 else (-1, -1)
    right = (
        rows >= 0
        and columns >= 0
        and rows * columns <= MOST_ELEMENTS
        and len(crow) == rows + 1
        and len(values) == len(col)
        and crow[0] == 0
        and crow[-1] == len(col)
        and bool((np.diff(crow) >= 0).all())
        and bool(((col >= 0) & (col < columns)).all())
    )
    if not right:
        raise _bad(f"{where} is not a sparse tensor (CSR) of the shape {list(shape)}")
    whole = np.full((rows, columns), _UNLISTED.get(name, 0), values.dtype)
    whole[np.repeat(np.arange(rows), np.diff(crow)), col] = values
    return whole


class _JsonTensor(BaseModel):
    data: list[float]
    dtype: str
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class JsonChunk(BaseModel):
    """A chunk of a model's input in JSON."""

    type: str = "encoded_text"
    tokens: list[int] = Field(default=[])


class JsonModelInput(BaseModel):
    """A model's input in JSON."""

    chunks: list[JsonChunk]


class _JsonDatum(BaseModel):
    model_input: JsonModelInput
    loss_fn_inputs: dict[str, _JsonTensor]


class _JsonInput(BaseModel):
    data: list[_JsonDatum]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None = None


class _JsonRequest(BaseModel):
    model_id: str
    seq_id: int | None = None
    forward_backward_input: _JsonInput | None = None
    forward_input: _JsonInput | None = None


def read_json(body: bytes, backward: bool) -> GradientRequest:
    """The same in JSON, as clients before 0.25 send it."""
    try:
        asked = _JsonRequest.model_validate_json(body)
    except ValidationError as error:
        raise _bad(first_problem(error)) from error
    given = asked.forward_backward_input or asked.forward_input
    if given is None:
        raise _bad("forward_backward_input is missing")
    _bounded(len(given.data))
    data = []
    for place, datum in enumerate(given.data):
        where = f"data[{place}]"
        inputs = {
            name: _json_tensor(name, tensor, f"{where}.{name}")
            for name, tensor in datum.loss_fn_inputs.items()
        }
        data.append(Datum(tokens_of(datum.model_input, where), inputs))
    return GradientRequest(
        asked.model_id,
        asked.seq_id or 0,
        data,
        given.loss_fn,
        dict(given.loss_fn_config or {}),
        backward,
    )


def tokens_of(given: JsonModelInput, where: str) -> npt.NDArray[np.int32]:
    """The tokens of an input in JSON, int32 ``[T]``; :class:`Refused` if it has something else than text."""
    tokens: list[int] = []
    for chunk in given.chunks:
        if chunk.type != "encoded_text":
            raise _bad(f"{where} has a chunk {chunk.type!r}; this server works on tokens alone")
        tokens += chunk.tokens
    if tokens and not (min(tokens) >= 0 and max(tokens) < 1 << 31):
        raise _bad(f"{where} has a value that is not a token id")
    return np.array(tokens, np.int32)


def _json_tensor(name: str, sent: _JsonTensor, where: str) -> Array:
    dtype = _NAMED_DTYPES.get(sent.dtype)
    if dtype is None:
        raise _bad(f"{where} has the dtype {sent.dtype[:40]!r}; expected float32 or int64")
    values: npt.NDArray[Any] = np.array(sent.data, dtype)
    shape = tuple(sent.shape or ())
    if sent.sparse_crow_indices is None:
        return _shaped(values, shape, where)
    crow = np.array(sent.sparse_crow_indices, np.int64)
    col = np.array(sent.sparse_col_indices or [], np.int64)
    return _from_csr(name, values, crow, col, shape, where)


def first_problem(error: ValidationError) -> str:
    """The first of the problems of a body, in one line."""
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])


def _bounded(count: int) -> None:
    if not count:
        raise _bad("there is no data")
    if count > MOST_DATUMS:
        raise _bad(f"a request has {count} sequences; at most {MOST_DATUMS} are taken")


def _bad(reason: str) -> Refused:
    return Refused(400, reason)


def numbers(config: Mapping[str, float | str], names: Mapping[str, float]) -> dict[str, float]:
    """The numbers of ``config`` for ``names``, name → default (NaN: required); :class:`Refused` for others."""
    if unknown := sorted(config.keys() - names.keys()):
        raise _bad(
            f"loss_fn_config has {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(names) or 'no keys for this loss'}"
        )
    found = {**names, **config}
    for name, value in found.items():
        if isinstance(value, str) or not math.isfinite(value):
            raise _bad(f"loss_fn_config.{name}: expected a number")
    return {name: float(value) for name, value in found.items()}
