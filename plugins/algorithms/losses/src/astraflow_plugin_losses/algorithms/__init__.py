"""The algorithms, one module each; those with rewards per turn are in ``turn_level``, and others in
``masked_ratio`` and ``group_scale``."""
