"""HTTP between processes: clients, the listener, its limits and its authentication."""
