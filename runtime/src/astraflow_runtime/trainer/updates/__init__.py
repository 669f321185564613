"""Updates: a batch is checked, then trained on; rows that cannot be trained on are reported."""
