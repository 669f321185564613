"""Commands ``replay`` and ``lineage``: a recorded run trained again, and what made an update of it."""
