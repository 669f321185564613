"""The environments that ``bench.environment_learning`` learns, and who demonstrates them."""
