"""Parts of the engine and trainer suites: rigs, and the tiny model in float64."""
