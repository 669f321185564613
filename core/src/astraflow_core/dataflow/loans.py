"""What cannot be lent: a stream that is shared wholly has no rows of its own, and nobody decides on them."""

from __future__ import annotations

from collections.abc import Mapping

from astraflow_core.dataflow.stream import PolicyStream
from astraflow_core.errors import PluginError


def check_loans(streams: Mapping[str, PolicyStream]) -> None:
    """:class:`PluginError` if a policy borrows from one that trains on rows of another one only, or if a data policy
    of such a one would decide nothing."""
    for policy, stream in streams.items():
        source = streams.get(stream.chain.source)
        if source is not None and source.shares:
            raise PluginError(
                f"policy {policy!r} borrows rows of {source.policy!r}, which trains on rows of {source.shares!r} only "
                f"and has none of its own; name {source.shares!r} as the source"
            )
        if stream.shares and (idle := stream.chain.decides_on_own_rows):
            raise PluginError(
                f"all rows of the batches of {policy!r} are borrowed of {stream.shares!r}, so data policy "
                f"{', '.join(map(repr, idle))} of {policy!r} would decide nothing; put it into the list of "
                f"{stream.shares!r}, which then holds for both, or borrow fewer rows"
            )
