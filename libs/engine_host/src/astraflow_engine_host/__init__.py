"""The process that runs one engine, and the protocol between a RaaS and it."""
