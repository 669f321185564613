"""What distributions need, read from their metadata: nothing is imported to find out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

RUNTIME = "runtime"
"""The extra that holds the heavy backend of a plugin."""
_MOST_HOLDERS = 3


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A requirement that this environment does not meet; ``installed`` is the version that it has of that
    package, empty if none."""

    requirement: Requirement
    installed: str

    @property
    def wanted(self) -> str:
        """``"torch>=2.6"``."""
        return f"{self.requirement.name}{self.requirement.specifier}"

    def __str__(self) -> str:
        state = f"{self.installed} is installed" if self.installed else "not installed"
        return f"{self.wanted} ({state})"


def runtime_requirements(distribution: metadata.Distribution) -> list[Requirement]:
    """Requirements that only the ``[runtime]`` extra brings, for this interpreter and platform."""
    return [
        requirement
        for requirement in _all_requirements(distribution)
        if not _applies(requirement, "") and _applies(requirement, RUNTIME)
    ]


def plain_requirements(distribution: metadata.Distribution) -> list[Requirement]:
    """Requirements that no extra has to bring, for this interpreter and platform."""
    return [each for each in _all_requirements(distribution) if _applies(each, "")]


def unsatisfied(requirements: list[Requirement]) -> Iterator[UnmetRequirement]:
    """Each requirement that this environment does not meet, with what it has instead."""
    for requirement in requirements:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield UnmetRequirement(requirement, "")
            continue
        if not _contains(requirement, version):
            yield UnmetRequirement(requirement, version)


def missing_runtime(distribution: metadata.Distribution | None) -> list[str]:
    """What the ``[runtime]`` extra of a distribution still lacks; empty if nothing or no such extra."""
    if distribution is None:
        return []
    return [str(unmet) for unmet in unsatisfied(runtime_requirements(distribution))]


def clashes(distribution: metadata.Distribution | None) -> list[str]:
    """What a distribution, its ``[runtime]`` extra included, wants of packages that are installed in another
    version, each with the other distributions that need the installed one."""
    if distribution is None:
        return []
    wanted = [*plain_requirements(distribution), *runtime_requirements(distribution)]
    return [f"{unmet}{_held(unmet)}" for unmet in unsatisfied(wanted) if unmet.installed]


def _held(unmet: UnmetRequirement) -> str:
    package = canonicalize_name(unmet.requirement.name)
    holders = {
        f"{other.metadata['Name']} {other.version} needs {requirement.name}{requirement.specifier}"
        for other in metadata.distributions()
        for requirement in _all_requirements(other)
        if canonicalize_name(requirement.name) == package
        and requirement.specifier
        and (_applies(requirement, "") or _applies(requirement, RUNTIME))
        and _contains(requirement, unmet.installed)
    }
    return "".join(f"; {holder}" for holder in sorted(holders)[:_MOST_HOLDERS])


def _all_requirements(distribution: metadata.Distribution) -> Iterator[Requirement]:
    try:
        texts = distribution.requires or ()
    except FileNotFoundError:  # what a broken removal left behind
        return
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:  # what pip could not have read either
            continue


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _contains(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False
