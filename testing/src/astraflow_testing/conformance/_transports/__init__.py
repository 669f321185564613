"""What the transport suite is made of: both halves, the link between them, and its demands."""
