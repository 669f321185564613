"""What a trainer sends along with a version for its engines to compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from astraflow_core.types import Batch, ImageSpan
from astraflow_runtime.raas.engines.probing import images_of
from astraflow_runtime.trainer.updates.probe import FILES, ROWS, TOKENS, Prober, probe_rows
from astraflow_wire.images.files import digest_of
from astraflow_wire.messages import Probe, decode, encode


def batch(*lengths: int) -> Batch:
    """Rows whose tokens count on from row to row; all but the first token of a row are trained."""
    sizes, total = np.array(lengths, np.int32), sum(lengths)
    mask = np.ones(total, bool)
    mask[np.cumsum(sizes) - sizes] = False
    per_row, per_token = np.zeros(len(lengths), np.float32), np.zeros(total, np.float32)
    numbers = np.arange(len(lengths), dtype=np.int64)
    return Batch(
        "b", "p", 3, sizes, np.arange(total, dtype=np.int32), mask, per_token,
        np.full(total, 3, np.int32), per_row, numbers, numbers, np.ones(len(lengths), np.int32),
        per_row, per_row, temperature=0.7,
    )  # fmt: skip


class Trainer:
    updates = 0

    def logprobs(self, given: Batch, model: str) -> np.ndarray:
        assert (given.temperature, model) == (1.0, "current")
        values = -given.tokens / 10 - 0.25 * self.updates
        return np.where(given.loss_mask, values, 7.0).astype(np.float32)


def test_short_rows_are_chosen_in_their_order() -> None:
    chosen = probe_rows(batch(9, 3, *[5] * ROWS))
    assert chosen.lengths.tolist() == [3, *[5] * (ROWS - 1)]
    assert chosen.tokens[:3].tolist() == [9, 10, 11]


def test_a_probe_is_bounded_but_never_empty() -> None:
    assert probe_rows(batch(TOKENS, TOKENS // 2, TOKENS // 2)).lengths.tolist() == [TOKENS // 2] * 2
    assert probe_rows(batch(TOKENS + 5)).lengths.tolist() == [TOKENS + 5]


def test_it_travels_whole() -> None:
    sent = decode(encode(Prober().probe(Trainer(), replace(batch(2, 3)), 4)), Probe)
    assert (sent.since, sent.moved) == (-1, 0.0)
    assert sent.lengths == [2, 3]
    assert np.frombuffer(sent.tokens, "<i4").tolist() == [0, 1, 2, 3, 4]
    assert np.frombuffer(sent.sampled, np.uint8).tolist() == [0, 1, 0, 1, 1]
    expected = np.array([7, -0.1, 7, -0.3, -0.4], np.float32)
    assert np.frombuffer(sent.logprobs, "<f4").tolist() == expected.tolist()


def test_the_second_says_how_far_the_trainer_moved_on_the_rows_of_the_first() -> None:
    trainer, prober = Trainer(), Prober()
    prober.probe(trainer, batch(2, 3), 4)
    trainer.updates = 2
    second = prober.probe(trainer, batch(4), 6)
    assert (second.since, second.moved, second.lengths) == (4, 0.5, [4])
    third = prober.probe(trainer, batch(3), 7)
    assert (third.since, third.moved) == (6, 0.0)


def test_a_trainer_with_values_that_are_not_finite_is_not_judged() -> None:
    trainer, prober = Trainer(), Prober()
    prober.probe(trainer, batch(3), 1)
    trainer.updates = np.inf
    assert prober.probe(trainer, batch(3), 2).moved == 0.0


def pictured(*files: bytes | None) -> Batch:
    """Rows that are each a token longer than the one before, with an image at the second and third token."""
    rows = batch(*range(4, 4 + len(files)))
    images = tuple(
        ImageSpan(int(start) + 1, 2, digest_of(file), file)
        for start, file in zip(rows.offsets, files, strict=False)
        if file is not None
    )
    return replace(rows, images=images)


def test_images_travel_once_with_their_places() -> None:
    sent = Prober().probe(Trainer(), pictured(b"one", None, b"two", b"one"), 4)
    assert sent is not None
    read = decode(encode(sent), Probe)
    assert sent.files == b"onetwo"
    found = [(image.start, image.length, bytes(image.data)) for image in images_of(read)]
    assert found == [(1, 2, b"one"), (10, 2, b"two"), (16, 2, b"one")]


def test_rows_with_large_images_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    large, half = bytes(FILES + 1), bytes(FILES // 2)
    rows = pictured(large, half, half, half[:-1], b"one")
    # The same file twice is one, and then a single byte is left.
    assert probe_rows(rows).lengths.tolist() == [5, 6, 7]
    assert Prober().probe(Trainer(), pictured(large), 5) is None
    assert (
        f"version 5 is not probed: the images of each row have more than {FILES} bytes"
        in caplog.text
    )
