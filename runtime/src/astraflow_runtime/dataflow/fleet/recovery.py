"""The weights that RaaS offer to a trainer that has lost its state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from astraflow_runtime.dataflow.fleet.versions import VersionTable
from astraflow_wire.http.recovery import OfferVersion, RecoverableVersions
from astraflow_wire.limits import cut
from astraflow_wire.messages import AnnouncementMessage


@dataclass
class VersionSearch:
    """The trainer of ``policy`` asked at ``since``, a time of the run's clock, and waits until ``until``;
    ``offers``: RaaS → its answer. It remains until a trainer of the policy registers."""

    policy: str
    since: float
    until: float
    offers: dict[str, OfferVersion] = field(default_factory=dict)

    def missing(self, raas: Collection[str]) -> list[str]:
        """The ``raas`` that have not answered."""
        return sorted(set(raas) - self.offers.keys())

    def found(
        self, versions: VersionTable, most_updates: int, silent: Collection[str]
    ) -> RecoverableVersions:
        """The versions that can be tried: those offered with the digest under which they were announced, of at
        most ``most_updates``, and the newest where it was announced."""
        newest = versions.newest[self.policy]
        found: dict[int, AnnouncementMessage] = {}
        problems = [f"{name} did not answer" for name in silent]
        for name, offer in sorted(self.offers.items()):
            if why := offer.error or _objection(offer, versions, most_updates):
                problems.append(cut(f"{name}: {why}"))
                continue
            others = found[offer.version].endpoints if offer.version in found else []
            found[offer.version] = AnnouncementMessage(
                policy=self.policy,
                version=offer.version,
                transport=offer.transport,
                endpoints=[*others, *offer.endpoints],
                digest=offer.digest,
                size=offer.size,
            )
        announced, made = versions.get(self.policy, newest), versions.made(self.policy, newest)
        usable = announced is not None and made is not None and made <= most_updates
        return RecoverableVersions(
            offered=[found[version] for version in sorted(found, reverse=True)],
            announced=announced if usable else None,
            problems=problems,
        )


def _objection(offer: OfferVersion, versions: VersionTable, most_updates: int) -> str:
    """Why an offer cannot be used; empty if it can."""
    made = versions.made(offer.policy, offer.version)
    if made is None or versions.digest(offer.policy, offer.version) != offer.digest:
        return f"what it has as version {offer.version} was not announced in this run"
    if made > most_updates:
        return f"version {offer.version} has more updates than are acknowledged since"
    return ""
