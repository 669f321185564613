"""Conformance of any rollout service over HTTP: a dataflow that is scripted, and what it demands."""
