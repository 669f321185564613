"""Results in the form of a client: of gradients and of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_contrib_tinker.wire import protobuf
from astraflow_core.types import GenerateResult

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GradientResult:
    """Log-probs of the targets of each datum, in their shape, and metrics whose names say how chunks are combined."""

    logprobs: Sequence[Floats]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Sampled sequences, and the log-prob of each token of the prompt if they were asked for: NaN at the first."""

    sequences: Sequence[GenerateResult]
    prompt_logprobs: Floats | None


Result = dict[str, object] | GradientResult | SampleResult
"""An object of JSON is sent as it is."""


def as_protobuf(result: GradientResult | SampleResult) -> bytes:
    """``ForwardBackwardOutput`` or ``SampleResponse``."""
    if isinstance(result, SampleResult):
        return _sampled(result)
    told = protobuf.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    for name, value in result.metrics.items():
        told.metrics.add(key=name, value=value)
    start = 0
    while start < len(result.logprobs):  # a record has tensors of one trailing shape
        trailing = result.logprobs[start].shape[1:]
        stop = start
        while stop < len(result.logprobs) and result.logprobs[stop].shape[1:] == trailing:
            stop += 1
        record = told.loss_fn_outputs.add(num_datums=stop - start)
        field = record.fields.add(key="logprobs").value
        parts = [array.astype("<f4").tobytes() for array in result.logprobs[start:stop]]
        field.data, field.dtype = b"".join(parts), protobuf.FLOAT32
        field.offsets = np.cumsum([0, *map(len, parts)]).astype("<i8").tobytes()
        field.trailing_shape.extend(trailing)
        start = stop
    return bytes(told.SerializeToString())


def _sampled(result: SampleResult) -> bytes:
    told = protobuf.SampleResponse()
    for sequence in result.sequences:
        told.sequences.add(
            stop_reason=protobuf.STOP if sequence.finish_reason == "stop" else protobuf.LENGTH,
            tokens=sequence.tokens.astype("<i4").tobytes(),
            logprobs=sequence.logprobs.astype("<f4").tobytes(),
        )
    if result.prompt_logprobs is not None:
        told.prompt_logprobs = result.prompt_logprobs.astype("<f4").tobytes()
    return bytes(told.SerializeToString())


def as_json(result: GradientResult | SampleResult) -> dict[str, object]:
    """The same for clients that do not accept protobuf."""
    if isinstance(result, SampleResult):
        told: dict[str, object] = {
            "type": "sample",
            "sequences": [
                {
                    "stop_reason": "stop" if sequence.finish_reason == "stop" else "length",
                    "tokens": sequence.tokens.tolist(),
                    "logprobs": sequence.logprobs.tolist(),
                }
                for sequence in result.sequences
            ],
        }
        if result.prompt_logprobs is not None:
            told["prompt_logprobs"] = [
                None if np.isnan(value) else float(value) for value in result.prompt_logprobs
            ]
        return told
    outputs = [
        {
            "logprobs": {
                "data": array.reshape(-1).tolist(),
                "dtype": "float32",
                "shape": list(array.shape),
            }
        }
        for array in result.logprobs
    ]
    return {
        "loss_fn_output_type": "ArrayRecord",
        "loss_fn_outputs": outputs,
        "metrics": dict(result.metrics),
    }


def size_of(result: Result) -> int:
    """Bytes that it holds, about."""
    if isinstance(result, GradientResult):
        return 256 + sum(array.nbytes + 128 for array in result.logprobs)
    if isinstance(result, SampleResult):
        prompt = 0 if result.prompt_logprobs is None else result.prompt_logprobs.nbytes
        return 256 + prompt + sum(3 * s.tokens.nbytes + 512 for s in result.sequences)
    return 1024
