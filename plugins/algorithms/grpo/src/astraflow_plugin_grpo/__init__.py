"""Algorithm ``grpo``: group-relative advantages and the clipped policy loss."""
