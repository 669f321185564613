"""The environments that ``bench.environment_learning`` learns, and their demonstrators."""
