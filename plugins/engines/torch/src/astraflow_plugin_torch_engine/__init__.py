"""Engine ``torch``: the reference implementation of :class:`astraflow_core.protocols.engine.Engine`.

``engine`` is the asynchronous face; ``loop`` the thread that admits, decodes and delivers; ``batch`` the
running sequences; ``cache`` their keys and values; ``model`` the Hugging Face model and its forward
passes; ``sampling`` the choice of tokens; ``speculation`` drafts of several at once; ``weights`` the swap of versions.
"""
