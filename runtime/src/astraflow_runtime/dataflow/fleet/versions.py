"""The announced versions of every policy, and which of them publishers must retain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from astraflow_core.errors import Refused
from astraflow_wire.messages import AnnouncementMessage

KEPT_DIGESTS = 4096
"""The newest versions of a policy whose digests are kept, to recognise weights of another history."""


class VersionTable:
    """Policy → announcements. Numbers only grow; the same announcement may come twice."""

    def __init__(self, policies: Iterable[str]) -> None:
        self._known: dict[str, dict[int, AnnouncementMessage]] = {name: {} for name in policies}
        self._newest: dict[str, int] = dict.fromkeys(self._known, -1)
        self._withdrawn: dict[str, int] = dict.fromkeys(self._known, -1)
        self._digests: dict[str, dict[int, str]] = defaultdict(dict)
        self._made: dict[str, dict[int, int]] = defaultdict(dict)
        self.first_vector: dict[str, int] | None = None

    @property
    def newest(self) -> Mapping[str, int]:
        """Policy → newest announced version, -1 before the first."""
        return self._newest

    @property
    def complete(self) -> bool:
        """Whether every policy has announced a version."""
        return all(version >= 0 for version in self._newest.values())

    @property
    def slowest(self) -> int:
        """The smallest of the newest versions."""
        return min(self._newest.values())

    def announce(self, message: AnnouncementMessage, made: int = 0) -> bool:
        """Record a version that has ``made`` updates; false if it was announced before. 409 if its
        number is not above the newest or is in use.
        """
        known, newest = self._known[message.policy], self._newest[message.policy]
        if (before := known.get(message.version)) is not None:
            if before.digest != message.digest:
                raise Refused(
                    409,
                    f"version {message.version} of {message.policy!r} already exists with another digest",
                )
            known[message.version] = message
            return False
        if message.version <= newest:
            raise Refused(
                409,
                f"version {message.version} of {message.policy!r} is not above {newest}; version numbers must increase",
            )
        known[message.version] = message
        self._newest[message.policy] = message.version
        digests = self._digests[message.policy]
        digests[message.version] = message.digest
        self._made[message.policy][message.version] = made
        if len(digests) > KEPT_DIGESTS:
            self._made[message.policy].pop(oldest := next(iter(digests)), None)
            del digests[oldest]
        return True

    def digest(self, policy: str, version: int) -> str:
        """The digest of one of the newest versions; empty if it is not known."""
        return self._digests[policy].get(version, "")

    def made(self, policy: str, version: int) -> int | None:
        """After how many updates one of the newest versions was published; ``None`` if it is not known."""
        return self._made[policy].get(version)

    def foreign(
        self, serving: Mapping[str, int], seen: Mapping[str, int], digests: Mapping[str, str]
    ) -> dict[str, str]:
        """Policy → what a RaaS has of it that was never announced here, as text: a higher number than
        any, or other weights under a number. A version is announced to a RaaS only once its announcement
        is in the journal, so the RaaS has it from a part of the journal that was lost since.
        """
        found = {}
        for policy, newest in self._newest.items():
            serves, digest = serving.get(policy, -1), digests.get(policy)
            if max(serves, seen.get(policy, -1)) > newest:
                verb, version = ("serves", serves) if serves > newest else ("knows", seen[policy])
                found[policy] = (
                    f"it {verb} version {version} of {policy!r}, and the newest is {newest}"
                )
            elif digest and digest != self._digests[policy].get(serves, digest):
                found[policy] = f"it serves other weights as version {serves} of {policy!r}"
        return found

    def withdraw(self, policy: str) -> None:
        """Mark all versions so far as unavailable: their publisher is gone."""
        self._withdrawn[policy] = self._newest[policy]

    def available(self, versions: Mapping[str, int]) -> bool:
        """Whether these versions can probably be fetched."""
        return all(version > self._withdrawn[policy] for policy, version in versions.items())

    def get(self, policy: str, version: int) -> AnnouncementMessage | None:
        """The announcement of a retained version."""
        return self._known[policy].get(version)

    def newer_than(self, seen: Mapping[str, int]) -> list[AnnouncementMessage]:
        """The newest announcement of each policy that is above what was seen and can be fetched."""
        return [
            self._known[policy][version]
            for policy, version in self._newest.items()
            if version > max(seen.get(policy, -1), self._withdrawn[policy])
        ]

    def retain(self, policy: str, needed: Iterable[int]) -> list[int]:
        """Forget all but the newest and the ``needed`` versions; returns those kept in addition to the newest."""
        known, newest = self._known[policy], self._newest[policy]
        kept = {v for v in needed if v in known and v > self._withdrawn[policy]}
        for version in [v for v in known if v != newest and v not in kept]:
            del known[version]
        return sorted(kept - {newest})
