"""Transport ``zmq``: versions over ZeroMQ, encrypted with keys that are derived from the run's token.

``keys`` derives them; ``messages`` defines the messages; ``publisher`` takes snapshots and ``server`` sends their
blocks; ``source`` asks for them, a few at a time.
"""
