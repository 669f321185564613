"""Reports on a run: status, waits and invariants."""
