"""Versions of the weights on their way to a rollout service that speaks the public protocol."""
