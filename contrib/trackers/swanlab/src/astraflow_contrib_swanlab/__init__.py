"""The tracker ``swanlab``."""
