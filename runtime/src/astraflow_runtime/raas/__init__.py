"""Rollout-as-a-service: leases tasks, runs their episodes on engine hosts, refreshes its own weights."""
