"""Conformance of a prompt source: an index always gives the same prompt."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import PromptError, UserError
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_testing.conformance._checks import Claims, Demands, assert_whole, capability
from astraflow_testing.conformance._processes import prompts_elsewhere as elsewhere
from astraflow_testing.conformance._processes.interpreter import InterpreterFailed
from astraflow_testing.conformance.subject import Conformance, Subject, context, installed
from astraflow_wire.limits import MAX_PROMPT_ID

DEMANDS = Demands("protocols/prompt_source")
LOOKED_AT = 2000
"""Number of prompts that are checked, from the beginning of a source."""
RESUMED = 16
"""Positions from which an iteration is continued."""
AT_HAND_S = 0.25

Built = Callable[[], Iterator[tuple[str, PromptSource]]]


@dataclass(frozen=True, slots=True)
class Damaged:
    """A source that must be refused because its data is damaged: all ``names`` (a file, a line) have to be
    in what the error says."""

    source: Subject
    names: tuple[str, ...]


class PromptSourceConformance(Conformance, Claims):
    """Requirements of every prompt source.

    Required fixture ``component``: the source under test, in the configurations worth testing::

        class TestMine(PromptSourceConformance):
            @pytest.fixture
            def component(self, tmp_path) -> Subject:
                (tmp_path / "good.csv").write_text("1 + 1,2\\\\n2 + 2,4\\\\n")
                return installed("prompt_source", "mine", {"path": tmp_path / "good.csv"})

    A source that reads what users write also gives ``damaged``: files with one mistake each.
    """

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the source, its configurations and its capabilities."""
        pytest.fail(
            "define the fixture `component`: return installed('prompt_source', NAME, keys, more_keys …)"
        )

    @pytest.fixture
    def damaged(self) -> list[Damaged]:
        """Sources whose data has a mistake, and what the error has to name. By default none: a source that makes its
        prompts itself reads nothing."""
        return []

    @pytest.fixture
    def build(self, component: Subject, tmp_path: Path) -> Built:
        """``build()``: (label, fresh instance) of each configuration."""

        def made() -> Iterator[tuple[str, PromptSource]]:
            for name, factory in component.variants.items():
                yield name, factory(context("dataflow", tmp_path))

        return made

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Known capabilities, and fixtures that do not skip."""
        assert_whole("prompt_source", request, ("damaged",))

    # --- prompts -------------------------------------------------------------------------------

    def test_every_prompt_has_a_unique_id(self, build: Built) -> None:
        """At least one; ids are texts, stable, unique and not too long for a message."""
        for name, source in build():
            size: object = len(source)
            DEMANDS.that(isinstance(size, int) and size > 0, f"{name} has {size} prompts", "one")
            first: dict[str, int] = {}
            for index in range(min(len(source), LOOKED_AT)):
                prompt: object = source[index]
                if not isinstance(prompt, Prompt):
                    DEMANDS.broken(
                        f"{name}: [{index}] is of type {type(prompt).__name__}", "a Prompt"
                    )
                one: object = prompt.id
                DEMANDS.that(
                    isinstance(one, str) and 0 < len(one) <= MAX_PROMPT_ID,
                    f"{name}: the id of [{index}] is {one!r:.80}",
                    f"a text of 1 to {MAX_PROMPT_ID} characters",
                )
                DEMANDS.that(
                    first.setdefault(prompt.id, index) == index,
                    f"{name}: [{first[prompt.id]}] and [{index}] have one id, {prompt.id!r:.80}",
                    "a unique id for each prompt: rewards, statistics and the journal use it",
                )

    def test_data_survives_serialization(self, build: Built) -> None:
        """``data`` is unchanged by serialization as JSON."""
        for name, source in build():
            for index in range(min(len(source), LOOKED_AT)):
                data = source[index].data
                demanded = (
                    "texts, finite numbers, booleans, None, lists, and dicts whose keys are texts"
                )
                try:
                    arrived = json.loads(json.dumps(data, allow_nan=False))
                except (TypeError, ValueError) as error:
                    DEMANDS.broken(f"{name}: data of [{index}] is not JSON-like: {error}", demanded)
                if different := _difference(data, arrived):
                    DEMANDS.broken(
                        f"{name}: data of [{index}] differs after a round trip through JSON at {different}",
                        demanded,
                    )

    def test_a_prompt_is_the_same_in_whatever_order_they_are_read(self, build: Built) -> None:
        """The prompt depends on its index, and not on earlier reads."""
        for (name, one), (_, other) in zip(build(), build(), strict=True):
            some = range(0, len(one), max(1, len(one) // 100))
            expected = {index: deepcopy(one[index]) for index in some}
            shuffled = random.Random(3).sample(list(some), len(some))
            for order in (reversed(some), shuffled, [some[-1]] * 2):
                for index in order:
                    for source in (one, other):
                        DEMANDS.that(
                            source[index] == expected[index],
                            f"{name}: [{index}] was {expected[index]!r:.120}, and {source[index]!r:.120} when it was "
                            "read again in another order",
                            "always the same prompt at an index",
                        )

    def test_iteration_continues_from_every_position(self, build: Built) -> None:
        """The core's cursor over a new instance continues from its position, past the end of an epoch."""
        for (name, one), (_, other) in zip(build(), build(), strict=True):
            steps = min(len(one) + 8, 200)
            walk = PromptCursor(one, seed=5, shuffle=True)
            whole = [walk.take().id for _ in range(steps)]
            for point in range(0, steps, max(1, steps // RESUMED)):
                resumed = PromptCursor(other, seed=5, shuffle=True, position=point)
                rest = [resumed.take().id for _ in range(min(steps - point, RESUMED))]
                DEMANDS.that(
                    rest == whole[point : point + len(rest)],
                    f"{name}: an iteration that continues after {point} prompts with a new instance takes others",
                    "that a position in the data is one integer: no state but the data itself",
                )

    def test_it_has_the_length_that_it_reports(self, build: Built) -> None:
        """An index of ``len`` or more is an :class:`IndexError`, so that a loop over the source ends."""
        for name, source in build():
            for index in (len(source), len(source) + 7):
                try:
                    found = source[index]
                except IndexError:
                    continue
                DEMANDS.broken(
                    f"{name} says that it has {len(source)} prompts, and gave {found!r:.80} at [{index}]",
                    "an IndexError from the length on",
                )

    def test_prompts_are_read_quickly(self, build: Built) -> None:
        """The dataflow reads prompts on its event loop."""
        for name, source in build():
            taken = []
            for index in range(0, len(source), max(1, len(source) // 8)):
                began = time.monotonic()
                source[index]
                taken.append(time.monotonic() - began)
            usual = sorted(taken)[len(taken) // 2]
            DEMANDS.that(
                usual < AT_HAND_S,
                f"{name} took {usual:.2f} s for a prompt",
                f"less than {AT_HAND_S} s: read or index the data once, when it is built",
            )

    # --- nothing else decides ------------------------------------------------------------------

    def test_prompts_do_not_depend_on_global_generators(self, build: Built) -> None:
        """Other components draw from ``random`` and ``numpy.random`` too."""
        before = random.getstate(), np.random.get_state()
        found = []
        try:
            for seed in (1, 2):
                random.seed(seed)
                np.random.seed(seed)
                found.append([elsewhere.facts(source) for _, source in build()])
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
        for (name, _), one, other in zip(build(), *found, strict=True):
            _same(name, one, other, "with the process's generators seeded differently")

    def test_another_process_has_the_same_prompts(
        self, component: Subject, build: Built, tmp_path: Path
    ) -> None:
        """With any seed of Python's hashes; and importing the source makes no requests."""
        if component.recipe is None:
            pytest.skip("only components made by installed() can be created in another process")
        try:
            found, dialled = elsewhere.elsewhere(component.recipe, tmp_path, hash_seed=4711)
        except InterpreterFailed as error:
            DEMANDS.broken(f"a new process cannot create it:\n{error}", "the same on every machine")
        DEMANDS.that(
            not dialled,
            f"the network is used before a prompt is requested: {'; '.join(dialled)}",
            "that importing it makes no requests; do this when the source is built",
        )
        for (name, source), there in zip(build(), found, strict=True):
            _same(name, elsewhere.facts(source), there, "in another process")

    @capability("generated")
    def test_its_seed_decides_the_prompts(
        self, component: Subject, build: Built, tmp_path: Path
    ) -> None:
        """A source that generates its prompts has a key ``seed``, and another seed gives other prompts."""
        recipe = component.recipe
        if recipe is None:
            pytest.fail("make a source that declares 'generated' with installed()")
        moved = False
        for (name, source), keys in zip(build(), recipe.variants, strict=True):
            seed = int(keys.get("seed", 0)) + 1
            try:
                (reseeded,) = installed(
                    recipe.kind, recipe.use, {**keys, "seed": seed}
                ).variants.values()
            except UserError as error:
                DEMANDS.broken(f"{name} does not take seed = {seed}: {error}", "a key `seed`")
            other = reseeded(context("dataflow", tmp_path))
            moved = moved or elsewhere.facts(other) != elsewhere.facts(source)
        DEMANDS.that(
            moved, "declares 'generated', but another seed gives the same prompts", "others"
        )

    # --- mistakes of users ---------------------------------------------------------------------

    def test_damaged_data_is_named_by_place(self, damaged: list[Damaged], tmp_path: Path) -> None:
        """With the file and the line, when the source is built: not in the middle of a run."""
        if not damaged:
            pytest.skip("reads no data of a user (the fixture `damaged` is empty)")
        for each in damaged:
            for name, factory in each.source.variants.items():
                demanded = f"a PromptError when it is built that names {', '.join(each.names)}"
                try:
                    factory(context("dataflow", tmp_path))
                except PromptError as error:
                    missing = [text for text in each.names if text not in str(error)]
                    DEMANDS.that(not missing, f"{name}: the error says only: {error}", demanded)
                    continue
                except Exception as error:  # noqa: BLE001 - told to the author
                    DEMANDS.broken(f"{name} raised {type(error).__name__}: {error}", demanded)
                DEMANDS.broken(f"{name} accepted the damaged data", demanded)


def _same(name: str, expected: elsewhere.Facts, found: elsewhere.Facts, when: str) -> None:
    if expected == found:
        return
    pairs = zip(expected, found, strict=False)
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), (expected[0], found[0]))
    DEMANDS.broken(
        f"{name}: other prompts {when}: {one} became {other} (length, or index, id and digest of its data)",
        "that only its keys decide: sort the contents of sets and folders, and use a generator that "
        "a key seeds",
    )


def _difference(given: Any, arrived: Any, where: str = "data") -> str:
    """The first place at which two values differ, types included; empty if they are the same."""
    if isinstance(given, float) and not isinstance(arrived, float | int):
        return where
    if type(given) is not type(arrived):
        return f"{where} ({type(given).__name__} became {type(arrived).__name__})"
    if isinstance(given, dict):
        if given.keys() != arrived.keys():
            return f"{where} (its keys)"
        parts = ((given[key], arrived[key], f"{where}[{key!r}]") for key in given)
        return next(filter(None, (_difference(*part) for part in parts)), "")
    if isinstance(given, list):
        both = zip(given, arrived, strict=True)
        found = (_difference(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(both))
        return next(filter(None, found), "")
    return "" if given == arrived or (isinstance(given, float) and math.isnan(given)) else where
