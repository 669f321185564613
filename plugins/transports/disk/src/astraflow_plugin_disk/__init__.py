"""Transport ``disk``: versions as objects of any store that fsspec knows.

``store`` is the store with errors in one language; ``places`` names the objects and signs the manifest;
``publisher`` writes them, the manifest last, and ``sweeper`` removes what is neither wanted nor leased;
``source`` brings a version's blocks to the receiver.
"""
