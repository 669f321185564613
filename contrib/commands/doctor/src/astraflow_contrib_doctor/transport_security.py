"""What the doctor finds about ``[tls]`` of a run on this host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from astraflow_contrib_doctor.finding import Finding
from astraflow_core.errors import ConfigError

if TYPE_CHECKING:
    from astraflow_core.config.models import RunConfig

FEW_DAYS = 14.0
"""A run may take that long, and a process that restarts needs a valid certificate."""
_OTHERS = 0o077
_RENEW = "delete its two files and make new ones with `astraflow certs DIR --host NAME`"


def of_tls(config: RunConfig) -> Iterator[Finding]:
    """Whether its files can be used, for how long, and who may read the key."""
    from astraflow_runtime.config.transport_security import check_tls, tls_of

    tls = tls_of(config)
    if tls is None:
        return
    try:
        days = check_tls(config)
    except ConfigError as error:
        for line in error.problems:
            path, _, text = line.partition(": ")
            problem, _, fix = text.partition("; ")
            yield Finding("problem", path, problem, fix)
        return
    assert days is not None, "there is a table"
    text = f"links are encrypted; the first certificate expires in {days:.0f} days"
    figures = {"days_left": days}
    if days < FEW_DAYS:
        yield Finding("warning", "tls", text, _RENEW, figures)
    else:
        yield Finding("ok", "tls", text, figures=figures)
    key = tls.own_files()[1]
    if key.stat().st_mode & _OTHERS:
        yield Finding(
            "warning",
            "tls.private_key",
            f"{key} may be read by other users of this host",
            f"chmod 600 {key}",
        )
