"""The algorithms, one module each; those with rewards per turn are in ``turn_level``."""
