"""Parts of the notes on a dry call, which the process that makes it writes and the launcher reads."""

from __future__ import annotations

ASYNC = "async"
"""The name of a reward whose calls are awaited on the event loop."""
NOT_CALLED = "was not called"
"""Part of the note on a workflow that leaves nothing to reward."""
