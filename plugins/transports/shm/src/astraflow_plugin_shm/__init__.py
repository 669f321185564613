"""Transport ``shm``: versions as files in shared memory, for trainer and RaaS of one host.

``files`` lays versions out and reuses files when no reader holds a lock on them; ``publisher`` names them and
notifies receivers; ``mapped`` opens and verifies one; ``bell`` receives the notifications; ``receiver`` returns sources.
"""
