"""Shared code of the benchmarks: clocks, processes, load. It contains no benchmark."""
