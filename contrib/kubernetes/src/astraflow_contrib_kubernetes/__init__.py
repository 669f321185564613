"""A launcher for Kubernetes clusters."""
