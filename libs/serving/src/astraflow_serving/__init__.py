"""What engines have in common that stand before a server or a backend of their own; for plugins.

``engine`` has the calls of an engine whose requests wait at a ``desk``; ``tokens`` are the checks on requests
and the search for stop sequences; ``model_folder`` and ``adapter`` know what a version of the weights has to look
like, ``buckets`` how a version is described that does not come as a file; ``gpu`` says whether there is one. For backends that are
servers: ``http`` makes the calls, ``server_backend`` knows when a server is lost, ``child_server`` starts one as a
child, under a ``guard``, and says why it ended.
"""
