"""Commands that tell the dataflow of a running run something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.cli.secrets import running_dataflow
from astraflow_core.errors import UserError

if TYPE_CHECKING:
    from astraflow_core.wire.client import SyncClient


@contextmanager
def asking(run: Path) -> Iterator[SyncClient]:
    """The dataflow of a run; what it refuses, and its silence, are the user's to mend."""
    from astraflow_core.errors import DeadlineExceeded, Refused
    from astraflow_core.wire.client import SyncClient

    url, token = running_dataflow(run, None, None)
    client = SyncClient(url, token)
    try:
        yield client
    except Refused as error:
        raise UserError(f"refused: {error}") from error
    except DeadlineExceeded as error:
        raise UserError(
            f"no dataflow answers at {url}; is the run still running? ({error})"
        ) from error
    finally:
        client.close()
