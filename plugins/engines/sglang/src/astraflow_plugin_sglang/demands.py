"""How a server has to be started for what this engine promises about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from astraflow_core.errors import PreflightError

Keep = Literal["in_place", "retract"]


@dataclass(frozen=True, slots=True)
class Demand:
    """``argument`` of ``sglang.launch_server`` has to be given, after which ``/server_info`` has ``value`` under
    ``field``; ``otherwise`` is what goes wrong without. ``keep``: only with this value of that key."""

    field: str
    value: object
    argument: str
    otherwise: str
    keep: Keep | None = None


DEMANDS = (
    Demand(
        "skip_tokenizer_init",
        True,
        "--skip-tokenizer-init",
        "tokens come through another process, after a change of version that they came before",
    ),
    Demand(
        "tokenizer_worker_num",
        1,
        "--tokenizer-worker-num 1",
        "an abort may reach a process that does not have the request",
    ),
    Demand(
        "pp_size",
        1,
        "--pp-size 1",
        "a pause leaves micro-batches on their way, whose tokens would get the version of after the pause",
    ),
    Demand(
        "disable_overlap_schedule",
        True,
        "--disable-overlap-schedule",
        "a pause leaves a token of each request unprocessed, which would get the version of after the pause",
        keep="in_place",
    ),
    Demand(
        "disable_radix_cache",
        True,
        "--disable-radix-cache",
        "a prefix that old weights computed would be read under new ones, since the cache cannot be flushed while "
        "requests are frozen",
        keep="in_place",
    ),
)


def demands(keep: Keep) -> Iterable[Demand]:
    """Those that hold for a value of the key ``keep``."""
    return (demand for demand in DEMANDS if demand.keep in (None, keep))


def check(info: Mapping[str, Any], keep: Keep, url: str) -> None:
    """Raise :class:`PreflightError` unless a server that says ``info`` was started as it has to be."""
    for demand in demands(keep):
        if info.get(demand.field) == demand.value:
            continue
        other = "; or set keep = 'retract'" if demand.keep == "in_place" else ""
        raise PreflightError(
            f"the SGLang server at {url} has {demand.field} = {info.get(demand.field)!r}: {demand.otherwise}. Start it "
            f"with {demand.argument}{other}"
        )
