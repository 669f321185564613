"""Checks the lower bounds in the pyproject files: light tests with the oldest versions that they allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import tiers
import wheels
from installers import CONSTRAINTS
from packaging.requirements import Requirement

from releasing import environments, trying, upgrade
from releasing.building import closure
from releasing.stamping import PREFIX, Member

TESTED = ("core/tests", "libs/wire/tests")
"""Folders whose light tests run; a run of tables uses what the runtime needs."""
OF_A_CHECKOUT = "test_what_provides_a_component_of_ours_is_named_and_no_other_distribution"
"""A test of what is said where AstraFlow is not installed from wheels."""
WITH_BOUNDS = ("astraflow-core", "astraflow-wire", "astraflow-runtime", "astraflow-testing")
"""Distributions whose lower bounds are taken, and those of what they need of ours."""
TEST_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "httpx")
DEADLINE_S = 1800.0


def third_parties(chosen: Iterable[Member]) -> list[str]:
    """What distributions ask of others: their dependencies, and what their tests need."""
    found: dict[str, None] = {}
    for member in chosen:
        for each in (*member.dependencies, *member.extras.get("testing", ())):
            if not each.name.startswith(PREFIX):
                found[str(each)] = None
    return list(found)


def pinned(names: Iterable[str]) -> list[str]:
    """The lines of constraints.txt for some distributions."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    found = {Requirement(line).name.lower(): line for line in lines if "==" in line}
    return [found[name.lower()] for name in names]


def test(
    all_of_them: dict[str, Member],
    built: Mapping[str, tuple[Path, Path]],
    python: Path,
    tree: Path,
    work: Path,
) -> list[str]:
    """Run the light tests of the core and the wire, and a run of tables; returns the versions that they ran with."""
    parties = third_parties(closure(WITH_BOUNDS, all_of_them))
    chosen = all_of_them.values()  # tests of the runtime use plugins
    made = environments.create(
        work / "oldest",
        python,
        [*environments.requirements(chosen, built, backends=False), *parties, *pinned(TEST_TOOLS)],
        "--resolution",
        "lowest-direct",
    )
    wheels.execute(
        *(
            str(made),
            "-m",
            "pytest",
            "-q",
            "-m",
            tiers.LIGHT,
            "-p",
            "no:cacheprovider",
            "-n",
            "2",
            "-k",
            f"not {OF_A_CHECKOUT}",
        ),
        *(str(tree / folder) for folder in TESTED),
        timeout=DEADLINE_S,
        cwd=tree,
    )
    trying.train(made, upgrade.table(work), work, ())
    names = dict.fromkeys(Requirement(party).name for party in parties)
    shown = "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in sys.argv[1:]), sep='\\n')"
    return wheels.execute(str(made), "-c", shown, *names).splitlines()
