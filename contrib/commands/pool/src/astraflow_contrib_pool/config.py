"""The file of a pool, and the keys of the launcher ``pool`` of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from astraflow_contrib_pool.messages import MOST_PLACES, MOST_SEATS
from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds
from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.launch.local.config import LocalLauncherConfig

TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TenantTable(ConfigModel):
    """``[tenants.NAME]``"""

    weight: Positive = Field(
        default=1.0, description="Share of the pool, relative to those of other tenants."
    )
    priority: int = Field(
        default=0,
        description="Runs with a higher priority are served first, and get slots immediately.",
    )
    max_slots: PositiveInt | None = Field(
        default=None, description="Maximum number of concurrent RaaS."
    )
    max_runs: PositiveInt = Field(default=8, description="Maximum number of concurrent runs.")
    max_tokens: PositiveInt | None = Field(default=None, description="Maximum tokens per window.")
    window_s: Seconds = Field(default=3600.0, description="Window of max_tokens, in seconds.")
    generation: Annotated[int, Field(ge=0)] = Field(
        default=0, description="A higher number revokes the tokens made before."
    )


class HostTable(ConfigModel):
    """``[host]``: RaaS on the host of the pool itself."""

    slots: Annotated[int, Field(ge=1, le=MOST_SEATS)] = Field(
        default=2, description="RaaS that fit into its memory at the same time."
    )
    places: Annotated[int, Field(ge=1, le=MOST_PLACES)] = Field(
        default=64, description="Concurrent episodes, of all RaaS together."
    )
    share_engines: bool = Field(
        default=False,
        description="Runs that train adapters of one model with an engine of the same keys have one engine.",
    )


class PricesTable(ConfigModel):
    """``[prices]``, in any currency."""

    slot_hour: NotNegative = Field(default=0.0, description="For a RaaS, per hour.")
    million_tokens: NotNegative = Field(default=0.0, description="For a million generated tokens.")


class PoolTable(ConfigModel):
    """``[pool]``"""

    listen: str = Field(default="127.0.0.1:19400", description="HOST:PORT; port 0: any free one.")
    directory: str = Field(default="pool", description="Folder of token, ledger and audit log.")
    turn_s: Seconds = Field(
        default=60.0,
        description="Shortest time that a RaaS keeps its slot while another run waits.",
    )
    drain_s: Seconds = Field(
        default=60.0,
        description="Longest time that a RaaS that makes room may take for its tasks; others get what is left.",
    )
    run_lease_s: Seconds = Field(
        default=15.0, description="A run that is silent for so long loses its RaaS."
    )
    host_lease_s: Seconds = Field(
        default=15.0, description="A host that is silent for so long counts as lost."
    )
    every_s: Seconds = Field(default=0.5, description="Seconds between two reports of a host.")


class PoolFile(ConfigModel):
    """The whole file."""

    pool: PoolTable = PoolTable()
    host: HostTable | None = None
    prices: PricesTable = PricesTable()
    tenants: Annotated[dict[TenantName, TenantTable], Field(min_length=1)]


class PoolLauncherConfig(LocalLauncherConfig):
    """``launcher = { use = "pool", url = "https://10.0.0.1:19400", token_file = "ada.token" }``"""

    url: Annotated[str, Field(pattern="^https?://", description="Address of the pool.")]
    token_file: Path = Field(description="File with the token of the tenant.")
    authority: Path | None = Field(
        default=None, description="Certificate of the pool's authority, for an address in https."
    )
    connect_s: Seconds = Field(
        default=60.0, description="Longest time that the pool may be silent at the start."
    )


def read_pool(path: Path) -> PoolFile:
    """The file; :class:`UserError` names each key that is wrong."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return PoolFile.model_validate(raw)
    except OSError as error:
        raise UserError(f"the pool file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(_said(each["loc"], each["type"], each["msg"]) for each in error.errors())
        raise UserError(f"{path}: {wrong}") from error


def _said(loc: tuple[int | str, ...], kind: str, what: str) -> str:
    """What is wrong with a key; for one that is unknown the nearest known one."""
    *above, key = loc
    where = ".".join(map(str, loc))
    if kind != "extra_forbidden":
        return f"{where}: {what}"
    table = _TABLES[str(above[0])] if above else PoolFile
    known = list(table.model_fields)
    return f"{where}: unknown key{did_you_mean(str(key), known)} (known: {', '.join(known)})"


_TABLES: dict[str, type[ConfigModel]] = {
    "pool": PoolTable,
    "host": HostTable,
    "prices": PricesTable,
    "tenants": TenantTable,
}
