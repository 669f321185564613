"""Version conflicts: requirements that the installed version of a package does not meet, and who
needs that version.
"""

from __future__ import annotations

from importlib import metadata

from packaging.utils import canonicalize_name

from astraflow_core.installed.requirements import (
    RUNTIME,
    UnmetRequirement,
    all_requirements,
    applies,
    contains,
    unsatisfied,
)

_MOST_HOLDERS = 3


def clashes(distribution: metadata.Distribution | None) -> list[str]:
    """The requirements of a distribution, its ``[runtime]`` extra included, that the installed
    version does not meet, each with the distributions that need the installed version.
    """
    if distribution is None:
        return []
    needed = all_requirements(distribution)
    wanted = [each for each in needed if applies(each, "") or applies(each, RUNTIME)]
    return [f"{unmet}{_holders(unmet)}" for unmet in unsatisfied(wanted) if unmet.installed]


def _holders(unmet: UnmetRequirement) -> str:
    package = canonicalize_name(unmet.requirement.name)
    holders = {
        f"{other.metadata['Name']} {other.version} needs {requirement.name}{requirement.specifier}"
        for other in metadata.distributions()
        for requirement in all_requirements(other)
        if canonicalize_name(requirement.name) == package
        and requirement.specifier
        and (applies(requirement, "") or applies(requirement, RUNTIME))
        and contains(requirement, unmet.installed)
    }
    return "".join(f"; {holder}" for holder in sorted(holders)[:_MOST_HOLDERS])
