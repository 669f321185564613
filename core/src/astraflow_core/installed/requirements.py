"""What distributions need, read from their metadata: nothing is imported to find out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

RUNTIME = "runtime"
"""The extra that holds the heavy backend of a plugin."""


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
        for requirement in all_requirements(distribution)
        if not applies(requirement, "") and applies(requirement, RUNTIME)
    ]


def unsatisfied(requirements: list[Requirement]) -> Iterator[UnmetRequirement]:
    """Each requirement that this environment does not meet, with what it has instead."""
    for requirement in requirements:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield UnmetRequirement(requirement, "")
            continue
        if not contains(requirement, version):
            yield UnmetRequirement(requirement, version)


def missing_runtime(distribution: metadata.Distribution | None) -> list[str]:
    """What the ``[runtime]`` extra of a distribution still lacks; empty if nothing or no such extra."""
    if distribution is None:
        return []
    return [str(unmet) for unmet in unsatisfied(runtime_requirements(distribution))]


def all_requirements(distribution: metadata.Distribution) -> Iterator[Requirement]:
    """What a distribution needs, with each of its extras; what cannot be read is left out."""
    try:
        texts = distribution.requires or ()
    except FileNotFoundError:  # what a broken removal left behind
        return
    for text in texts:
        try:
            yield Requirement(text)
        except InvalidRequirement:  # what pip could not have read either
            continue


def applies(requirement: Requirement, extra: str) -> bool:
    """Whether it is needed here, by this interpreter and platform, with this ``extra`` ("" for none)."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def contains(requirement: Requirement, version: str) -> bool:
    """Whether a version is one that it allows."""
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False
