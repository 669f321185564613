"""Benchmarks: one module each, with a function ``measure(quick) -> dict`` of JSON fields."""
