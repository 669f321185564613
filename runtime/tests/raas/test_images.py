"""Prompts with images on their way to an engine, and back as sequences that say what the policy saw."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from local_engine import LocalEngine, replicas_of
from played import fixed, rolled_out

from astraflow_core.errors import UserError
from astraflow_core.types import GenerateRequest, Sampling, Trajectory
from astraflow_engine_host import protocol
from astraflow_runtime.raas.episodes.episodes import TaskFailed
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle, TaskPolicyEngine
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_testing.images.pictures import picture
from astraflow_tiny_model.vision import write_tiny_vision_model
from astraflow_wire.images.model import ImageModel
from astraflow_wire.images.table import encode_joined

RED, GREEN = picture(1), picture(2)


def messages(*parts):
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64," + base64.b64encode(part).decode()},
        }
        for part in parts
    ]
    return [{"role": "user", "content": content}]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    return write_tiny_vision_model(tmp_path_factory.mktemp("pictured"), hidden=8, heads=2)


class Seeing(LocalEngine):
    """Keeps its requests."""

    asked = ()

    async def generate(self, request):
        self.asked = (*self.asked, request)
        return await super().generate(request)


def handle_of(folder, reads=True):
    engine = Seeing()
    images = ImageModel.of(folder) if reads else None
    return engine, PolicyHandle(replicas_of(engine), FolderTokenizer(folder), images=images)


def answering(*parts):
    async def workflow(engines, prompt):
        tokens, images = engines["solver"].render_images(messages(*parts))
        engine = engines["solver"].with_images(images).session()
        result = await engine.generate(tokens)
        return Trajectory((engine.sequence(tokens, result),), (engine.completion(result),))

    return workflow


def test_the_engine_sees_them_and_so_does_the_group(pictured):
    engine, handle = handle_of(pictured)
    group = rolled_out(handle, answering("1", RED, "+", GREEN, "="), fixed)
    places = [(1, RED), (6, GREEN)]
    for request in engine.asked:
        assert [(image.start, image.data) for image in request.images] == places
        assert (request.prompt[1:5] == 27).all() and (request.prompt[6:10] == 27).all()
    assert len(group.header.sequences) == len(engine.asked)
    starts = group.offsets[:-1].tolist()
    found = [(image.start, bytes(image.data)) for image in group.images]
    assert found == [(start + place, data) for start in starts for place, data in places]
    assert bytes(group.body).count(RED) == bytes(group.body).count(GREEN) == 1
    for image in group.images:
        assert not group.loss_mask[image.start : image.end].any()


def test_a_policy_that_reads_none_says_what_to_set(pictured):
    _, handle = handle_of(pictured, reads=False)
    with pytest.raises(
        TaskFailed, match=r"the policy reads none: set images = true in \[policies.s"
    ):
        rolled_out(handle, answering(RED), fixed)
    engine = TaskPolicyEngine(handle, Sampling(2))
    tokens, images = engine.render_images(messages("12"))
    assert tokens.tolist() == handle.tokenizer.encode("12").tolist() and images == ()


def test_a_workflow_that_renders_text_only_drops_no_image(pictured):
    _, handle = handle_of(pictured)
    engine = TaskPolicyEngine(handle, Sampling(2))
    with pytest.raises(UserError, match="the messages have images, and this workflow renders text"):
        engine.render(messages("1", RED))
    assert engine.render("12").tolist() == handle.tokenizer.encode("12").tolist()


def test_the_text_of_a_placeholder_in_a_message_is_no_image(pictured):
    _, handle = handle_of(pictured)
    engine = TaskPolicyEngine(handle, Sampling(2))
    with pytest.raises(UserError, match="wrote 2 placeholders"):
        engine.render_images(messages("@", RED))


def test_an_image_from_the_network_is_refused_by_its_host(pictured):
    _, handle = handle_of(pictured)
    engine = TaskPolicyEngine(handle, Sampling(2))
    part = {"type": "image_url", "image_url": {"url": "http://host/a.png"}}
    with pytest.raises(
        UserError, match=r"policy 'solver': message 0: .* 'http://host': nothing is"
    ):
        engine.render_images([{"role": "user", "content": [part]}])


def test_requests_to_a_host_have_each_file_once(pictured):
    _, handle = handle_of(pictured)
    engine = TaskPolicyEngine(handle, Sampling(2))
    requests = []
    for number, parts in enumerate([("1",), (RED, "2"), ("3", GREEN, RED)]):
        tokens, images = engine.render_images(messages(*parts))
        requests.append(GenerateRequest(str(number), tokens, Sampling(2), images=images))
    header, *buffers = protocol.encode_requests(requests)
    assert b"".join(bytes(buffer) for buffer in buffers).count(RED) == 1
    read = protocol.decode_requests(protocol.decode_to_host(header), buffers)
    for given, found in zip(requests, read, strict=True):
        assert found.images == given.images and np.array_equal(found.prompt, given.prompt)
        assert [bytes(i.data) for i in found.images] == [bytes(i.data) for i in given.images]
    table, files = encode_joined([((), 3)])
    assert table is None and files == []
    header, *buffers = protocol.encode_requests(requests[:1])
    assert len(buffers) == 1 and protocol.decode_requests(protocol.decode_to_host(header), buffers)
