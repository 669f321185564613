"""What the server does: gradients, steps, snapshots and samples, in the order of each model's requests."""
