"""What commands read of the directory of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError


def read_config(run: Path) -> dict[str, Any]:
    """The raw ``config.toml`` of a run, as it was resolved; :class:`UserError` if ``run`` is no directory of one."""
    file = run / "config.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(
            f"{run} is no run directory: it has no config.toml; name one that `astraflow run` has made, such as "
            "runs/NAME-DATE-TIME"
        ) from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{file} is no TOML: {error}; `astraflow run` wrote it whole") from error
