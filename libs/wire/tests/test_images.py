"""Images in messages, prompts and groups: what is accepted, what is refused, and each file once."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow_core.errors import WireError
from astraflow_core.types import Batch, Group, ImageSpan, Sequence, Trajectory
from astraflow_core.types.columns import zeros
from astraflow_testing.images.pictures import picture, prompt
from astraflow_tiny_model.vision import write_tiny_vision_model
from astraflow_wire.batches import decode_batch, encode_batch
from astraflow_wire.column_table import batch_columns
from astraflow_wire.columns import check_limits
from astraflow_wire.frames import Frame, encode_frame
from astraflow_wire.groups import ReceivedGroup, encode_group
from astraflow_wire.images.files import MAX_BYTES, MAX_IMAGES, decoded, digest_of
from astraflow_wire.images.model import ImageModel
from astraflow_wire.images.parts import split_images
from astraflow_wire.images.placing import expanded
from astraflow_wire.model_files.model_limits import ModelLimits

MODEL = ImageModel(token=9, length=3)
RED, GREEN = picture(1), picture(2)


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def message(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def image(address: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


def bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """A PNG file of a few bytes whose header announces so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_messages_are_split_into_placeholders_and_files() -> None:
    text = {"type": "text", "text": "which?"}
    given = [{"role": "system", "content": "s"}, *message(image(url(RED)), text, image(url(GREEN)))]
    plain, files = split_images(given)
    assert files == [RED, GREEN]
    assert plain[0] == given[0]
    assert plain[1]["content"] == [{"type": "image"}, text, {"type": "image"}]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (
            image("https://host/a.png?key=secret"),
            "at the address 'https://host': nothing is fetched",
        ),
        (image("file:///etc/passwd"), "at the address 'file://': nothing is fetched"),
        (image("data:image/png,abc"), "expected 'data:image/png;base64"),
        (image("data:image/png;base64,a!"), "is not base64"),
        (image(url(b"GIF89a" + b"x" * 20)), "are not an image; expected PNG, JPEG, WEBP"),
        (image(url(bomb())), r"far more than 16777216 pixels, the most"),
        (image(url(bomb(5000, 5000))), "5000 × 5000 pixels; the most is 16777216"),
        (image(url(bomb(65, 1))), "65 × 1 pixels; one side may be at most 64 times the other"),
        (image(url(RED[:-20])), "is damaged"),
        (image(url(RED[:60] + b"?" + RED[61:])), "is damaged"),
        (image("data:image/png;base64," + "A" * (MAX_BYTES // 3 * 4 + 12)), "the most is 4194304"),
        (image(3), "an image_url is 3"),
        ({"type": "input_audio"}, "expected one of type 'text' or 'image_url'"),
    ],
)
def test_parts_that_are_refused(part: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        split_images([{"role": "system", "content": "s"}, *message(part)])
    assert str(caught.value).startswith("message 1: ") and "secret" not in str(caught.value)


def test_too_many_images_and_damaged_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="65 images; the most is 64"):
        split_images(message(*[image(url(RED))] * (MAX_IMAGES + 1)))
    with pytest.raises(ValueError, match="is damaged"):
        decoded(RED[:80])
    assert decoded(RED).mode == "RGB"


def test_placeholders_become_as_many_as_the_model_reads() -> None:
    tokens, images = expanded(np.array([9, 1, 9, 9], np.int32), [RED, GREEN, RED], MODEL)
    assert tokens.tolist() == [9] * 3 + [1] + [9] * 6
    assert [(each.start, each.length) for each in images] == [(0, 3), (4, 3), (7, 3)]
    assert [each.data for each in images] == [RED, GREEN, RED]
    assert images[0].digest == images[2].digest == digest_of(RED)
    with pytest.raises(ValueError, match=r"wrote 1 placeholders .* for 2 images"):
        expanded(np.array([9, 1], np.int32), [RED, RED], MODEL)


def test_models_that_read_images_and_others(tmp_path: Path) -> None:
    folder = write_tiny_vision_model(tmp_path / "a", image_size=12, patch_size=4)
    assert ImageModel.of(folder) == ImageModel(token=27, length=9)
    config = json.loads((folder / "config.json").read_text())

    def refused(reason: str, **changes: Any) -> None:
        (folder / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(ValueError, match=reason):
            ImageModel.of(folder)

    refused(
        "is of type 'qwen3', which reads no images here; images need .*llava", model_type="qwen3"
    )
    refused("a vision tower of type 'pixtral'", vision_config={"model_type": "pixtral"})
    refused("image_size 0", vision_config={**config["vision_config"], "image_size": 0})
    refused("no image_token_index", image_token_index="x")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(
        ValueError, match=r"a model without a processor: .* has no preprocessor_config"
    ):
        ImageModel.of(folder)


def sequence(policy: str, *parts: Any) -> Sequence:
    """The tokens of ``parts``, where a file stands for its placeholders, and one sampled token."""
    tokens, images = prompt(MODEL, *parts, [5])
    sampled = np.arange(len(tokens)) == len(tokens) - 1
    columns = (np.where(sampled, -0.5, 0).astype(np.float32), np.where(sampled, 0, -1))
    return Sequence(policy, tokens, sampled, *columns, 1.0, images=images)


def pushed(*sequences: Sequence) -> bytes:
    return encode_group(Group("t", "p", tuple(Trajectory((s,)) for s in sequences)), "raas-3")


def limits(**models: ImageModel | None) -> dict[str, ModelLimits]:
    return {name: ModelLimits(images=model) for name, model in models.items()}


def test_a_group_has_each_file_once() -> None:
    given = [
        sequence("a", RED, [1]),
        sequence("b", [2]),
        sequence("a", [1], RED, GREEN, [2]),
        sequence("a", RED),
    ]
    body = pushed(*given)
    assert body.count(RED) == body.count(GREEN) == 1
    group = ReceivedGroup(body)
    check_limits(group, limits(a=MODEL, b=None))
    assert [each.start for each in group.images] == [0, 8, 11, 16]
    assert [bytes(each.data) for each in group.images] == [RED, RED, GREEN, RED]
    plain = pushed(given[1])
    assert ReceivedGroup(plain).images == ()
    assert "images" not in msgspec.msgpack.decode(Frame(plain).header)


def tampered(body: bytes, change: Any) -> bytes:
    frame = Frame(body)
    header = msgspec.msgpack.decode(frame.header)
    buffers = [bytearray(buffer) for buffer in frame.buffers]
    change(header["images"], buffers)
    return encode_frame(header, [np.frombuffer(buffer, np.uint8) for buffer in buffers])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table, buffers: buffers[-1].__setitem__(50, 7), "has the bytes of"),
        (lambda table, buffers: buffers[-1].pop(), "other than the .* bytes announced"),
        (lambda table, buffers: table[0][0].__setitem__(0, 3), "within one sequence"),
        (
            lambda table, buffers: table[0][1].__setitem__(0, 0),
            "after the tokens of the previous image",
        ),
        (lambda table, buffers: table[0][0].__setitem__(1, 900), "within one sequence"),
        (lambda table, buffers: table[0][0].__setitem__(2, 2), "one of 2 images"),
        (lambda table, buffers: table[1].pop(), "1 digests of 2 files"),
        (lambda table, buffers: table[1].__setitem__(0, "x"), "regex"),
        (lambda table, buffers: table[2].__setitem__(0, MAX_BYTES + 1), "4194304"),
    ],
)
def test_a_damaged_table_is_refused(change: Any, reason: str) -> None:
    body = pushed(sequence("a", RED, [1]), sequence("a", [1], GREEN))
    with pytest.raises(WireError, match=reason):
        ReceivedGroup(tampered(body, change))


def test_images_that_a_model_does_not_read_are_refused() -> None:
    def refused(reason: str, body: bytes, model: ImageModel | None = MODEL) -> None:
        with pytest.raises(WireError, match=reason):
            check_limits(ReceivedGroup(body), limits(a=model))

    good = sequence("a", [1], RED)
    refused("'a': has an image; the policy is without images = true", pushed(good), None)
    refused("3 tokens; expected 4 placeholders", pushed(good), ImageModel(9, 4))
    refused("expected 3 placeholders, token 8", pushed(good), ImageModel(8, 3))
    versions = good.versions.copy()
    versions[2] = 0
    refused("placeholders of an image were sampled", pushed(replace(good, versions=versions)))
    refused("has more than 64 images", pushed(sequence("a", *[RED] * (MAX_IMAGES + 1))))
    data = b"no picture"
    other = ImageSpan(1, 3, digest_of(data), data)
    refused("are not an image", pushed(replace(good, images=(other,))))
    check_limits(ReceivedGroup(pushed(good)), limits(a=MODEL))


def test_a_batch_has_them_where_its_rows_are() -> None:
    tokens, images = prompt(MODEL, RED, [1], [2], [3], GREEN)
    columns = zeros(batch_columns(False, False), 3, len(tokens))
    lengths = np.array([4, 2, 3], np.int32)
    given = columns | {"lengths": lengths, "tokens": tokens}
    batch = Batch(id="b", policy="a", version=0, images=images, **given)
    received = decode_batch(encode_batch(batch))
    assert isinstance(received, Batch) and received.images == images
    assert [bytes(each.data) for each in received.images] == [RED, GREEN]
    part = received.take(np.array([2, 0, 2]))
    assert [each.start for each in part.images] == [0, 3, 7]
    assert [each.digest for each in part.images] == [digest_of(d) for d in (GREEN, RED, GREEN)]
    assert part.tokens.tolist() == [9] * 3 + [9] * 3 + [1] + [9] * 3
    body = bytearray(encode_batch(batch))
    body[bytes(body).index(RED) + 20] ^= 1
    with pytest.raises(WireError, match=re.escape("has the bytes of")):
        decode_batch(bytes(body))
