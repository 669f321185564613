"""Versions of the weights as blocks: snapshots, leases, a server, verified downloads. What transports share."""
