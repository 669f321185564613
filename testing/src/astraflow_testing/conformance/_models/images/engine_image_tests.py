"""Tests of an engine that declares ``images``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import Images, Sampling
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.engine_rig import (
    DEMANDS,
    Examiner,
    Request,
    Served,
    complete,
    serve,
    source,
)
from astraflow_testing.conformance._models.images import llava
from astraflow_testing.conformance._models.images.rows import Row, pictured_rows
from astraflow_testing.conformance.subject import Subject
from astraflow_testing.images.pictures import write_picture_model

SAMPLING = Sampling(8, ignore_eos=True)


class EngineImageTests:
    """Part of :class:`astraflow_testing.conformance.engine.EngineConformance`."""

    deadline_s: float
    tolerance: float

    @pytest.fixture
    def picture_model(self, tmp_path: Path) -> Path:
        """The folder of a model that reads images, of the LLaVA architecture."""
        return write_picture_model(tmp_path / "pictured")

    @pytest.fixture
    def other_picture_model(self, tmp_path: Path) -> Path:
        """The same with other weights."""
        return write_picture_model(tmp_path / "pictured-otherwise", seed=1)

    @capability("images")
    def test_images_are_read_at_their_placeholders(
        self, component: Subject, picture_model: Path, tmp_path: Path
    ) -> None:
        """Each request sees its own, also while others with the same tokens run."""

        async def scenario(served: Served) -> None:
            sent = launched(served, pictured_rows(picture_model))
            sent += launched(served, pictured_rows(picture_model)[::-1])
            files = {0: picture_model / "model.safetensors"}
            for one in sent:
                await self._examine(served, one, picture_model, files)

        serve(component, picture_model, tmp_path, self.deadline_s, scenario)

    @capability("images", "weights.path")
    def test_new_weights_read_images_anew(
        self, component: Subject, picture_model: Path, other_picture_model: Path, tmp_path: Path
    ) -> None:
        async def scenario(served: Served) -> None:
            other = other_picture_model / "model.safetensors"
            files = {0: picture_model / "model.safetensors", 1: other}
            rows = pictured_rows(picture_model)
            for one in launched(served, rows):
                await self._examine(served, one, picture_model, files)
            await served.engine.pause("wait")
            await served.engine.load_weights(source(other, 1))
            await served.engine.resume()
            for one in launched(served, rows):
                result = await one.task
                DEMANDS.that(
                    set(result.versions.tolist()) == {1},
                    f"tokens sampled after a swap carry {sorted(set(result.versions.tolist()))}",
                    "each token carries the version that sampled it",
                )
                await self._examine(served, one, picture_model, files)

        serve(component, picture_model, tmp_path, self.deadline_s, scenario)

    @capability("images", "score")
    def test_images_are_read_in_tokens_to_score(
        self, component: Subject, picture_model: Path, tmp_path: Path
    ) -> None:
        async def scenario(served: Served) -> None:
            engine: Any = served.engine
            for tokens, images in pictured_rows(picture_model)[1:]:
                scores = await engine.score_images(tokens, images)
                logits = of_row(picture_model, picture_model / "model.safetensors", tokens, images)
                wanted = qwen3.log_softmax(logits)[np.arange(len(tokens) - 1), tokens[1:]]
                error = float(np.abs(scores[1:] - wanted).max())
                DEMANDS.that(
                    error < self.tolerance,
                    f"score_images() of {len(tokens)} tokens with {len(images)} images is off by {error:.2g}",
                    "the log-probs of the tokens, given the images among them",
                )

        serve(component, picture_model, tmp_path, self.deadline_s, scenario)

    @capability("images")
    def test_images_that_do_not_fit_are_refused(
        self, component: Subject, picture_model: Path, tmp_path: Path
    ) -> None:
        async def scenario(served: Served) -> None:
            rows = pictured_rows(picture_model)
            tokens, (image,) = rows[1]
            damaged = replace(image, data=image.data[:60], digest="0" * 64)
            for what, wrong in (
                ("with one placeholder too few", replace(image, length=image.length - 1)),
                ("that begins after its first placeholder", image.moved(1)),
                ("whose file is damaged", damaged),
            ):
                beside = launched(served, rows[2:3])
                try:
                    result = await served.launch(SAMPLING, tokens.tolist(), images=(wrong,)).task
                except (ValueError, AstraFlowError) as error:
                    assert str(error), "the error has no message"
                else:
                    DEMANDS.broken(
                        f"a request with an image {what} returned {len(result.tokens)} tokens",
                        "it is refused: ValueError or UserError",
                    )
                complete(beside[0].request, await beside[0].task, SAMPLING.max_tokens, "length")

        serve(component, picture_model, tmp_path, self.deadline_s, scenario)

    async def _examine(
        self, served: Served, sent: Request, folder: Path, files: Mapping[int, Path]
    ) -> None:
        result = await sent.task
        images = sent.request.images

        def logits(prompt: qwen3.Ids, tokens: qwen3.Ids, used: Sequence[Path]) -> qwen3.Floats:
            read = np.concatenate([prompt, tokens])
            (file,) = set(used)
            return of_row(folder, file, read, images)[len(prompt) - 1 :]

        check = Examiner(logits, served.engine.logprob_semantics, self.tolerance, files)
        check.examine(sent.request, result)
        complete(sent.request, result, SAMPLING.max_tokens, "length")


def launched(served: Served, rows: Sequence[Row]) -> list[Request]:
    """A request for each row, side by side."""
    return [served.launch(SAMPLING, tokens.tolist(), images=images) for tokens, images in rows]


def of_row(folder: Path, file: Path, tokens: qwen3.Ids, images: Images) -> qwen3.Floats:
    """Logits ``[N - 1, V]`` of the distributions of all tokens but the first."""
    return llava.logits(folder, file, tokens[:-1], images)
