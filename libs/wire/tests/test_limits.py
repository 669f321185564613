"""Every field of every message is bounded, those that are written tomorrow too."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from astraflow_core.errors import WireError
from astraflow_runtime.dataflow.journal import entries
from astraflow_wire import batches, groups, limits, messages

MESSAGES = [
    value
    for value in vars(messages).values()
    if isinstance(value, type) and issubclass(value, messages.Message)
]
HEADERS = [
    groups.GroupHeader,
    groups.SequenceHeader,
    groups.Turn,
    batches.BatchHeader,
    batches.NoBatch,
]
ENTRIES = [
    value
    for value in vars(entries).values()
    if isinstance(value, type)
    and issubclass(value, msgspec.Struct)
    and value.__module__ == entries.__name__
]
REQUESTS = [struct for struct in MESSAGES if (struct.__doc__ or "").startswith("``POST")]
REQUESTS += [messages.AnnouncementMessage, messages.Wait, messages.Probe, *HEADERS[:3]]
CHECKED_ELSEWHERE = {
    ("SequenceHeader", "reward"),  # wire.columns, which names the RaaS too
    ("BodyLocation", "digest"),  # 64 bits
}
"""Numbers whose bounds are no part of their type."""
CUT = {("Turn", "text"), *(("*", name) for name in limits.TEXTS)}
"""Texts that are cut instead of refused."""


def parts(type_: inspect.Type) -> Iterator[inspect.Type]:
    """A type, and those that it is made of, without structs."""
    yield type_
    for name in ("item_type", "key_type", "value_type"):
        if (inner := getattr(type_, name, None)) is not None:
            yield from parts(inner)
    for inner in (*getattr(type_, "types", ()), *getattr(type_, "item_types", ())):
        yield from parts(inner)


def fields(struct: type) -> Iterator[tuple[str, inspect.Type]]:
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        for part in parts(field.type):
            yield field.name, part


@pytest.mark.parametrize("struct", [*MESSAGES, *HEADERS, *ENTRIES], ids=lambda s: s.__name__)
def test_numbers_have_bounds_on_both_sides(struct):
    for name, part in fields(struct):
        if isinstance(part, (inspect.FloatType, inspect.IntType)):
            if (struct.__name__, name) in CHECKED_ELSEWHERE:
                continue
            assert part.ge is not None, f"{struct.__name__}.{name}: use a type of wire.limits"
            assert part.le is not None, f"{struct.__name__}.{name}: use a type of wire.limits"


@pytest.mark.parametrize("struct", REQUESTS, ids=lambda s: s.__name__)
def test_names_and_collections_of_requests_have_a_largest_size(struct):
    sized = (inspect.StrType, inspect.BytesType, inspect.ListType, inspect.DictType)
    for name, part in fields(struct):
        if not isinstance(part, (*sized, inspect.VarTupleType)) or name == "table":
            continue
        if isinstance(part, inspect.StrType) and {("*", name), (struct.__name__, name)} & CUT:
            continue
        assert part.max_length is not None, f"{struct.__name__}.{name}: use a type of wire.limits"


def filled(type_: inspect.Type, random_: random.Random, depth: int = 0) -> Any:
    """Plain values that may or may not be of a type; hostile ones often."""
    odd = [
        None,
        math.nan,
        math.inf,
        2**63,
        -(2**63),
        "x" * 300,
        b"\xff",
        [],
        {},
        msgspec.Raw(b"\xc1"),
    ]
    if random_.random() < 0.05 or depth > 6:
        return random_.choice(odd)
    if isinstance(type_, inspect.StructType):
        made = {f.encode_name: filled(f.type, random_, depth + 1) for f in type_.fields}
        if type_.tag is not None:
            made[type_.tag_field] = type_.tag
        return list(made.values()) if type_.array_like else made
    if isinstance(type_, inspect.UnionType):
        return filled(random_.choice(type_.types), random_, depth)
    if isinstance(type_, (inspect.ListType, inspect.VarTupleType)):
        return [filled(type_.item_type, random_, depth + 1) for _ in range(random_.randrange(3))]
    if isinstance(type_, inspect.TupleType):
        return [filled(each, random_, depth + 1) for each in type_.item_types]
    if isinstance(type_, inspect.DictType):
        keys = ("a", "solver", "x" * 300)
        return {random_.choice(keys): filled(type_.value_type, random_, depth + 1)}
    plain = {
        inspect.IntType: 1, inspect.FloatType: 0.5, inspect.StrType: "a", inspect.BytesType: b"a",
        inspect.BoolType: True, inspect.NoneType: None, inspect.AnyType: [1, {"a": 2}],
    }  # fmt: skip
    return plain[type(type_)]


@pytest.mark.parametrize("struct", [*MESSAGES, *HEADERS[:1]], ids=lambda s: s.__name__)
def test_whatever_comes_is_taken_or_refused_with_one_error(struct):
    """Also replies: a RaaS or a trainer reports a malformed one, and nothing of another type is returned."""
    random_, described = random.Random(struct.__name__), inspect.type_info(struct)
    taken = 0
    for _ in range(200):
        body = bytearray(msgspec.msgpack.encode(filled(described, random_)))
        if random_.random() < 0.5:
            body[random_.randrange(len(body))] = random_.randrange(256)
        try:
            message = messages.decode(bytes(body), struct)
        except WireError as error:
            assert struct.__name__ in str(error)
        else:
            taken += 1
            assert isinstance(message, struct)
    assert taken
