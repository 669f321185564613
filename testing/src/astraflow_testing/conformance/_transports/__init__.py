"""Parts of the transport suite: both halves, the link between them, and the checks."""
