"""The tracker ``wandb``."""
