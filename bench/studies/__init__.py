"""Studies of the effects of algorithms and data policies on learning. Each is run by ``python -m bench.studies.NAME``."""
