"""Studies: what algorithms and data policies do to learning. Each is run by ``python -m bench.studies.NAME``."""
