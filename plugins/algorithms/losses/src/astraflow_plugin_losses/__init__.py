"""The family of policy losses: one short module per algorithm, and the pieces that they share."""
