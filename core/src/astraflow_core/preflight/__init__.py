"""The numerical preflight: whether engine and trainer of a run mean the same by the same numbers."""
