"""RaaS and trainers: registration, heartbeats, versions, and how many RaaS there should be."""
