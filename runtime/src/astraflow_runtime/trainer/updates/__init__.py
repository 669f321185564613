"""Updates: a batch is checked, then trained on; what cannot be trained on is told."""
