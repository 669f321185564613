"""Parts of the launcher suite: processes that a test directs, and how they end."""
