"""A probe that comes with a version is measured by an engine at just that version."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from local_engine import LocalEngine, replicas_of
from msgspec.structs import replace
from raas_run import announcement

from astraflow_core.errors import RunFailed, UserError
from astraflow_core.types import ImageSpan
from astraflow_engine_host.protocol import EngineError
from astraflow_runtime.raas.engines.probing import Probes
from astraflow_wire.images.files import digest_of
from astraflow_wire.images.table import encode
from astraflow_wire.messages import Probe

pytestmark = pytest.mark.timeout(20)

TRAINER = np.array([0, -1, -2, 0, -3], np.float32)
ASKED = Probe(
    lengths=[3, 2],
    tokens=np.array([5, 6, 7, 8, 9], "<i4").tobytes(),
    sampled=np.array([0, 1, 1, 0, 1], np.uint8).tobytes(),
    logprobs=TRAINER.astype("<f4").tobytes(),
)


class Scene:
    """An engine that serves ``version`` and scores each token by its number, and its probes."""

    def __init__(self, exact: frozenset[str] = frozenset()) -> None:
        self.scores = {3: [0, -1, -2.5], 2: [0, -3]}
        self.version: int | None = 1
        self.asked: list[list[int]] = []
        self.seen: list[list[tuple[int, bytes]]] = []
        self.during = lambda: None
        self.loaded = 0.0  # what the weights of the engine add to each score
        self.killed: list[str] = []
        engine = LocalEngine()
        engine.host.client.score = self.score
        engine.host.kill = self.killed.append
        replicas = {"solver": replicas_of(engine, serving=lambda: self.version)}
        self.probes = Probes(replicas, 5.0, exact=exact)

    async def score(self, tokens, deadline_s, images):
        self.asked.append(tokens.tolist())
        self.seen.append([(image.start, bytes(image.data)) for image in images])
        self.during()
        return np.array(self.scores[len(tokens)], np.float32) + self.loaded

    def after(self, *steps) -> list[float | None]:
        """The version measured last, after each step was taken and looked at."""

        async def run():
            running = asyncio.create_task(self.probes.run())
            found = []
            for step in steps:
                step()
                self.probes.changed()
                for _ in range(20):
                    await asyncio.sleep(0)
                if running.done():
                    running.result()
                found.append(self.probes.figures().get("solver/probe_version"))
            running.cancel()
            return found

        return asyncio.run(run())

    def announce(self, version: int, probe: Probe | None = ASKED):
        return lambda: self.probes.on_announced(replace(announcement(version), probe=probe))

    def serve(self, version: int | None):
        return lambda: setattr(self, "version", version)


def test_sampled_tokens_are_compared() -> None:
    scene = Scene()
    assert scene.after(scene.announce(1)) == [1]
    assert scene.asked == [[5, 6, 7], [8, 9]]
    assert scene.probes.figures() == {
        "solver/probe_version": 1.0,
        "solver/probe_mean": pytest.approx(0.5 / 3),
        "solver/probe_largest": 0.5,
    }


def with_images(*places: tuple[int, bytes]) -> Probe:
    spans = [ImageSpan(start, 1, digest_of(file), file) for start, file in places]
    table, files = encode(spans)
    return replace(ASKED, images=table, files=b"".join(b"".join(each) for each in files))


def test_each_row_is_scored_with_its_images() -> None:
    scene = Scene()
    assert scene.after(scene.announce(1, with_images((0, b"a"), (2, b"b"), (4, b"a")))) == [1]
    assert scene.seen == [[(0, b"a"), (2, b"b")], [(1, b"a")]]


def test_a_probe_with_other_images_than_it_says_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene, sent = Scene(), with_images((0, b"a"))
    steps = [scene.announce(1, replace(sent, files=files)) for files in (b"b", b"")]
    assert scene.after(*steps) == [None, None]
    assert "version 1 of policy 'solver' is not probed: an image with the digest" in caplog.text
    assert not scene.asked


def test_a_probe_waits_for_its_version() -> None:
    scene = Scene()
    assert scene.after(scene.announce(2), scene.serve(None), scene.serve(2)) == [None, None, 2]
    assert len(scene.asked) == 2


def test_one_that_is_overtaken_is_left_out() -> None:
    scene = Scene()
    steps = (
        scene.announce(2),
        scene.serve(3),
        scene.announce(4),
        scene.announce(5, None),
        scene.serve(4),
    )
    assert scene.after(*steps) == [None, None, None, None, 4]


def test_a_replica_is_probed_before_it_loads_the_next_version() -> None:
    """Even if several versions were announced before it loaded the first."""
    scene = Scene()

    async def run():
        for version in (1, 2, 3):
            scene.announce(version)()
        await scene.probes.before_swap("solver", 0)
        found = [scene.probes.figures()]
        scene.version = 3
        await asyncio.gather(*(scene.probes.before_swap("solver", 0) for _ in range(2)))
        return [*found, scene.probes.figures()]

    assert [figures["solver/probe_version"] for figures in asyncio.run(run())] == [1.0, 3.0]
    assert len(scene.asked) == 4  # two rows of each


def test_a_replica_without_a_probe_swaps_at_once() -> None:
    scene = Scene()
    scene.announce(1, None)()
    asyncio.run(scene.probes.before_swap("solver", 0))
    asyncio.run(scene.probes.before_swap("teacher", 0))
    assert not scene.asked


def test_an_older_probe_of_another_replica_takes_no_figures_back() -> None:
    scene = Scene()
    assert scene.after(scene.announce(2), scene.serve(2), scene.announce(1)) == [None, 2, 2]


def test_versions_of_another_history_are_measured_from_their_first() -> None:
    scene = Scene()
    steps = [
        scene.announce(5),
        scene.serve(5),
        lambda: scene.probes.discard("solver"),
        scene.serve(1),
    ]
    assert scene.after(*steps, scene.announce(1)) == [None, 5, None, None, 1]


def test_each_measurement_is_reported() -> None:
    scene = Scene()
    reports: list[dict[str, float]] = []
    scene.probes.measured = lambda: reports.append(scene.probes.figures())
    scene.after(scene.announce(1), scene.serve(2), scene.announce(2))
    assert [each["solver/probe_version"] for each in reports] == [1.0, 2.0]


def test_a_swap_meanwhile_spoils_it() -> None:
    scene = Scene()
    scene.during = scene.serve(2)
    assert scene.after(scene.announce(1)) == [None]


def test_an_engine_that_fails_is_no_reason_to_end() -> None:
    scene = Scene()

    def fail():
        raise EngineError("out of memory")

    scene.during = fail
    assert scene.after(scene.announce(1), lambda: setattr(scene, "during", lambda: None)) == [
        None,
        1,
    ]


def moved(since: int, nats: float) -> Probe:
    return replace(ASKED, since=since, moved=nats)


def test_weights_that_arrive_move_the_engine_as_they_moved_the_trainer() -> None:
    scene = Scene()

    def load(version: int):
        def step():
            scene.version, scene.loaded = version, 0.05 * version

        return step

    steps = (
        scene.announce(1),
        scene.announce(2, moved(1, 0.05)),
        load(2),
        scene.announce(3, moved(2, 0.06)),
        load(3),
    )
    assert scene.after(*steps) == [1, 1, 2, 2, 3]
    assert scene.killed == []


def test_an_engine_that_does_not_move_is_restarted_and_then_given_up() -> None:
    scene = Scene()
    kills: list[int] = []
    steps = [scene.announce(1), scene.announce(2, moved(1, 0.05)), scene.serve(2)]
    steps += [lambda: kills.append(len(scene.killed))]
    steps += [
        scene.announce(3, moved(2, 0.05)),
        scene.serve(3),
    ]  # the new engine has nothing to compare
    steps += [lambda: kills.append(len(scene.killed))]
    steps += [scene.announce(4, moved(3, 0.05)), scene.serve(4)]
    with pytest.raises(RunFailed, match=r"version 4 did not reach the engine of policy 'solver'"):
        scene.after(*steps)
    assert kills == [1, 1] and scene.killed == ["computed with the weights of version 1"]


@pytest.mark.parametrize(("since", "nats"), [(1, 0.0), (1, 5e-5), (0, 0.5), (-1, 0.5)], ids=str)
def test_a_trainer_that_hardly_moved_or_compares_with_another_version_kills_no_engine(
    since: int, nats: float
) -> None:
    scene = Scene()
    assert (
        scene.after(scene.announce(1), scene.announce(2, moved(since, nats)), scene.serve(2))[-1]
        == 2
    )
    assert scene.killed == []


def test_log_probs_that_are_to_be_equal_end_the_run_by_name_if_they_are_not() -> None:
    scene = Scene(exact=frozenset({"solver"}))
    with pytest.raises(UserError) as caught:
        scene.after(scene.announce(1))
    said = str(caught.value)
    assert "version 1 of " in said and "gives -2.5 for the token at position 2 of row 0" in said
    assert "the trainer -2;" in said and "batch_invariant" in said


@pytest.mark.parametrize("other", [np.nextafter(np.float32(-3), np.float32(0)), np.nan])
def test_the_smallest_difference_is_one(other: float) -> None:
    """Of the last token of the second row: in the row, not among the sampled tokens, is its position counted."""
    scene = Scene(exact=frozenset({"solver"}))
    trainer = np.array([0, -1, -2.5, 0, -3], np.float32)
    scene.scores[2] = [0, other]
    asked = replace(ASKED, logprobs=trainer.astype("<f4").tobytes())
    with pytest.raises(UserError, match="at position 1 of row 1 of the probe"):
        scene.after(scene.announce(1, asked))


def test_log_probs_that_are_equal_go_on() -> None:
    scene = Scene(exact=frozenset({"solver"}))
    trainer = np.array([0, -1, -2.5, 0, -3], np.float32)
    asked = replace(ASKED, logprobs=trainer.astype("<f4").tobytes())
    assert scene.after(scene.announce(1, asked)) == [1]
    assert scene.probes.figures()["solver/probe_largest"] == 0.0
