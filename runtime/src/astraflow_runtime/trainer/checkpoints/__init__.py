"""What a trainer saves: checkpoints, and the final models."""
