"""Questions about databases, to be answered by queries that are executed."""
