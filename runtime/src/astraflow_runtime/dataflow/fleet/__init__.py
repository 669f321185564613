"""Who takes part: RaaS and trainers, their versions, their silence, and how many there should be."""
