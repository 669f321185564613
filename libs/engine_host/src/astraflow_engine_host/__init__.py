"""The process that runs one engine, and the protocol that a RaaS speaks to it."""
