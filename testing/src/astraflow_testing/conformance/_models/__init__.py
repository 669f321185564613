"""What the engine and trainer suites are made of: rigs, and the tiny model in float64."""
