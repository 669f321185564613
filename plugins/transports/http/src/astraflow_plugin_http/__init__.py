"""Transport ``http``: whole versions of the weights over HTTP, verified block by block.

``publisher`` takes snapshots (``snapshot``), keeps them while they are wanted or read (``store``) and
serves them (``server``); ``receiver`` writes verified files, filled by a ``download`` per publisher.
"""
