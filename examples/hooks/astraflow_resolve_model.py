from pathlib import Path

from astraflow_core import hookimpl


@hookimpl
def astraflow_resolve_model(reference, seed, cache, fetch):
    scheme, _, name = reference.partition(":")
    return Path("/srv/models") / name if scheme == "shared" else None
