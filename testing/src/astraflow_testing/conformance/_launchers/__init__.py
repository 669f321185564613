"""What the launcher suite is made of: processes that a test directs, and how they end."""
