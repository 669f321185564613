"""What the benchmarks share: clocks, processes, load. No benchmark itself."""
