"""Images reach the batch with the rows that saw them, whatever way these take, and each file once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astraflow_core.errors import WireError
from astraflow_core.types import ImageSpan
from astraflow_testing.images.pictures import picture
from astraflow_wire.batches import encode_batch
from astraflow_wire.images.files import digest_of
from astraflow_wire.images.model import ImageModel

MODEL = ImageModel(token=999, length=2)
RED, GREEN = picture(1), picture(2)


def seen(data, start=0):
    return (ImageSpan(start, 2, digest_of(data), data),)


def reading(b):
    b.state.limits["solver"] = replace(b.state.limits["solver"], images=MODEL)
    return b


@pytest.fixture
def b(bench, config, tmp_path):
    return reading(bench(config(policy__batch_sequences=4), journal=tmp_path).begin())


@pytest.mark.parametrize("restarted", [False, True])
def test_rows_with_and_without_them_share_a_batch(b, restarted):
    (first, second), _ = b.lease(4)
    b.push(first, seen=[seen(RED), seen(RED)])
    b.push(second, length=6, seen=[(), seen(GREEN, 1)])
    if restarted:
        b.restart()
    batch = b.next_batch(0)
    assert batch.lengths.tolist() == [5, 5, 6, 6]
    assert [image.start for image in batch.images] == [0, 5, 17]
    assert [bytes(image.data) for image in batch.images] == [RED, RED, GREEN]
    assert batch.tokens[17:19].tolist() == [999, 999]
    body = encode_batch(batch)
    assert body.count(RED) == body.count(GREEN) == 1
    if restarted:
        b.restart()
        assert encode_batch(b.next_batch(0)) == body


def test_they_are_refused_where_the_policy_reads_none(bench, config, tmp_path):
    b = bench(config(policy__batch_sequences=4), journal=tmp_path).begin()
    (task, _), _ = b.lease(4)
    with pytest.raises(
        WireError, match="'solver': has an image; the policy is without images = true"
    ):
        b.push(task, seen=[seen(RED), ()])


@pytest.mark.parametrize("which", [0, 1])
def test_they_move_with_the_parts_of_a_group(bench, config, tmp_path, which):
    keys = {
        "run__group_size": 2,
        "run__group_deadline_s": 10,
        "run__refill_groups": True,
        "policy__batch_sequences": 2,
    }
    b = reading(bench(config(**keys), journal=tmp_path).begin())
    given = [[], []]
    given[which] = [seen(RED)]
    (task,), _ = b.lease(2)
    b.push(task, rewards=(0.0,), late=1, seen=given[0])
    (rest,), _ = b.lease(1)
    b.push(rest, rewards=(1.0,), seen=given[1])
    (image,) = b.next_batch(0).images
    assert (image.start, bytes(image.data)) == (5 * which, RED)
