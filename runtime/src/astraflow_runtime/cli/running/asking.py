"""Commands that call the dataflow of a running run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.running.secrets import running_dataflow

if TYPE_CHECKING:
    from astraflow_wire.http.client import SyncClient


@contextmanager
def asking(
    run: str | None, dataflow: str | None = None, token_file: Path | None = None
) -> Iterator[SyncClient]:
    """A client of the dataflow of a run (see :func:`running_dataflow`); rejections and timeouts
    become errors of the user.
    """
    from astraflow_core.errors import DeadlineExceeded, Refused
    from astraflow_wire.http.client import SyncClient

    url, token = running_dataflow(run, dataflow, token_file)
    client = SyncClient(url, token)
    try:
        yield client
    except Refused as error:
        raise UserError(
            f"the dataflow at {url} refused the request: {error} ({error.status})"
        ) from error
    except DeadlineExceeded as error:
        raise UserError(
            f"no dataflow answers at {url}; check that the run is still running ({error})"
        ) from error
    finally:
        client.close()
