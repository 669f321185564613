"""Transport ``collective``: a broadcast from the trainer's snapshot into the engines that joined in time.

``publisher`` offers each version by HTTP and begins a ``round`` for it: a window in which engines join , then a broadcast in the background. A receiver asks the desk for a
place for each engine; what comes too late or fails is fetched by HTTP.
"""
