"""The run as people and programs look at it: status, waits and invariants."""
