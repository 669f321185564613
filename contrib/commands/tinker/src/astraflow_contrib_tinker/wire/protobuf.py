"""The messages of ``tinker_public.proto`` that the server reads and writes, as the client's wheel 0.38 has them.

They are built from the table below, so that neither the client nor generated code is needed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
)

PACKAGE = "astraflow_tinker"
"""Not the name of the public file, so that both can be loaded in one process; no name is part of the wire format."""
FLOAT32, INT64, INT32 = 1, 2, 3
"""``DType``."""
STOP, LENGTH = 0, 1
"""``StopReason``."""

DecodeError = message.DecodeError

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _FIELD.TYPE_BYTES, "string": _FIELD.TYPE_STRING, "bool": _FIELD.TYPE_BOOL, "double": _FIELD.TYPE_DOUBLE,
    "int32": _FIELD.TYPE_INT32, "int64": _FIELD.TYPE_INT64, "uint32": _FIELD.TYPE_UINT32, "enum": _FIELD.TYPE_INT32,
}  # fmt: skip
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "SparseCsr": {"values": (1, "bytes"), "crow_indices": (2, "bytes"), "col_indices": (3, "bytes")},
    "Tensor": {
        "dense": (1, "bytes"), "sparse_csr": (2, "SparseCsr"), "dtype": (3, "enum"), "shape": (4, "int64*"),
    },
    "EncodedTextChunk": {"tokens": (1, "bytes")},
    "OtherChunk": {},
    "Chunk": {"encoded_text": (1, "EncodedTextChunk"), "image": (2, "OtherChunk"), "dmel": (3, "OtherChunk")},
    "NamedTensor": {"key": (1, "string"), "value": (2, "Tensor")},
    "Datum": {"model_input": (1, "Chunk*"), "loss_fn_inputs": (2, "NamedTensor*")},
    "LossConfigValue": {"number": (1, "double?"), "text": (2, "string?")},
    "NamedNumber": {"key": (1, "string"), "value": (2, "double")},
    "NamedConfigValue": {"key": (1, "string"), "value": (2, "LossConfigValue")},
    "ForwardBackwardHead": {"model_id": (1, "string"), "seq_id": (2, "int32")},
    "ForwardBackwardRequest": {
        "model_id": (1, "string"), "seq_id": (2, "int32"), "data": (3, "Datum*"), "loss_fn": (4, "string"),
        "loss_fn_config": (5, "NamedNumber*"), "forward_only": (6, "bool"), "loss_fn_config_v2": (7, "NamedConfigValue*"),
    },
    "BatchedTensor": {
        "data": (1, "bytes"), "offsets": (2, "bytes"), "dtype": (3, "enum"), "trailing_shape": (4, "int64*"),
    },
    "NamedBatchedTensor": {"key": (1, "string"), "value": (2, "BatchedTensor")},
    "ArrayRecord": {"fields": (2, "NamedBatchedTensor*"), "num_datums": (3, "int64")},
    "ForwardBackwardOutput": {
        "loss_fn_output_type": (1, "string"), "loss_fn_outputs": (2, "ArrayRecord*"), "metrics": (3, "NamedNumber*"),
    },
    "SampledSequence": {"stop_reason": (1, "enum"), "tokens": (2, "bytes"), "logprobs": (3, "bytes?")},
    "SampleResponse": {"sequences": (1, "SampledSequence*"), "prompt_logprobs": (2, "bytes?")},
}  # fmt: skip
"""Message → field → number and type; ``*`` repeats, ``?`` may be absent. A map is a repeated message of key and value."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, (number, written) in fields.items():
            kind = written.rstrip("*?")
            entry = described.field.add(name=field, number=number)
            entry.label = _FIELD.LABEL_REPEATED if written.endswith("*") else _FIELD.LABEL_OPTIONAL
            if written.endswith("?"):
                entry.proto3_optional = True
                entry.oneof_index = len(described.oneof_decl)
                described.oneof_decl.add(name=f"_{field}")
            if kind in _SCALARS:
                entry.type = _SCALARS[kind]
            else:
                entry.type, entry.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _classes()
ForwardBackwardHead: Any = _CLASSES["ForwardBackwardHead"]
"""The first fields of a request; the others are skipped."""
ForwardBackwardRequest: Any = _CLASSES["ForwardBackwardRequest"]
ForwardBackwardOutput: Any = _CLASSES["ForwardBackwardOutput"]
SampleResponse: Any = _CLASSES["SampleResponse"]
