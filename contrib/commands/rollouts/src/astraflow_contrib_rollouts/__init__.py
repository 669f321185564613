"""The commands ``astraflow rollouts`` and ``astraflow rewards recompute``."""
