"""The suites of AstraFlow, with a reader of event files that shares nothing with the writer but the messages."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import pytest
from tensorboardX.proto.event_pb2 import Event

from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_contrib_tensorboard.manifest"


class TestTensorBoard(TrackerConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("tracker", "tensorboard", {}, {"flush_s": 0.1})

    @pytest.fixture
    def read(self) -> Read:
        return recorded


def events(context: ComponentContext) -> Iterator[Event]:
    """Those of all files of a run: length, checksum, message, checksum; see TensorFlow's ``tfrecord``."""
    for file in sorted((context.run.directory / "tensorboard").glob("events*")):
        content, place = file.read_bytes(), 0
        while place < len(content):
            (size,) = struct.unpack_from("<Q", content, place)
            event = Event()
            event.ParseFromString(content[place + 12 : place + 12 + size])
            yield event
            place += size + 16


def recorded(context: ComponentContext) -> Recorded:
    values: dict[str, list[tuple[int, float]]] = {}
    texts: dict[str, str] = {}
    rows = []
    for event in events(context):
        for value in event.summary.value:
            tag = value.tag.removesuffix("/text_summary")
            if value.HasField("simple_value"):
                values.setdefault(tag, []).append((event.step, value.simple_value))
            elif value.HasField("tensor"):
                texts[tag] = value.tensor.string_val[0].decode()
                if tag == "rollouts/solver":
                    cells = [
                        re.split(r"(?<!\\)\|", line)[1:-1] for line in texts[tag].split("\n")[2:]
                    ]
                    rows += [(cell[1], cell[2]) for cell in cells]
    return Recorded(values, texts.get("config", ""), rows, ended="summary" in texts)
