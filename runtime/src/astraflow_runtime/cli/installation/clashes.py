"""What a distribution wants of packages that are installed in another version, and who needs those."""

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
    """What a distribution, its ``[runtime]`` extra included, wants of packages that are installed in another
    version, each with the other distributions that need the installed one."""
    if distribution is None:
        return []
    needed = all_requirements(distribution)
    wanted = [each for each in needed if applies(each, "") or applies(each, RUNTIME)]
    return [f"{unmet}{_held(unmet)}" for unmet in unsatisfied(wanted) if unmet.installed]


def _held(unmet: UnmetRequirement) -> str:
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
