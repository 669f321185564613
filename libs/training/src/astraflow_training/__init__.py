"""What trainers share that needs arrays only: micro-batches, shares of ranks, schedules."""
