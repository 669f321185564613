"""Engine ``vllm``: a vLLM server as a child of the engine host, driven over its HTTP interface.

``engine`` is what the host calls and ``backend`` the server in use; ``server`` says how one is started and what
its last words mean; ``requests`` and ``images`` translate requests and answers, ``routes`` and ``metrics`` know the server's;
``updates`` and ``adapters`` bring versions in; ``transfer`` is the half that runs inside vLLM's workers.
``environment`` says how an interpreter for it is made.
"""
