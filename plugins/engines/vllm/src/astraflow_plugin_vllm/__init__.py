"""Engine ``vllm``: a vLLM server as a child of the engine host, driven over its HTTP interface.

``engine`` is the asynchronous face; ``desk`` decides which requests are at the server and which wait;
``requests`` translates requests and answers; ``client`` makes the calls; ``server`` starts the server, by
``serve``, and says why it ended; ``weights`` checks versions and ``updates`` brings them in; ``transfer``
is the half that runs inside vLLM's workers. ``environment`` says how an interpreter for it is made.
"""
