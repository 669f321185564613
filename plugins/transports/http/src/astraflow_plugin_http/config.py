"""The keys of the transport."""

from __future__ import annotations

from pydantic import Field, field_validator

from astraflow_weights.connection_keys import HttpKeys


class HttpConfig(HttpKeys):
    """Keys of ``transport = { use = "http" }``."""

    mirrors: tuple[str, ...] = Field(
        (),
        description="Addresses that receivers try before the publisher: a content delivery network "
        "that asks the publisher for what it lacks, or a bucket.",
    )
    relay: bool = Field(
        False,
        description="Receivers serve each other what they have verified: beyond 4, the publisher "
        "sends a receiver to another one.",
    )

    @field_validator("mirrors")
    @classmethod
    def _addresses(cls, mirrors: tuple[str, ...]) -> tuple[str, ...]:
        for mirror in mirrors:
            if not mirror.startswith(("http://", "https://")):
                raise ValueError(
                    f"mirror {mirror!r}: expected an address such as https://host/path"
                )
        return mirrors
