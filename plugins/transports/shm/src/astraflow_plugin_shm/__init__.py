"""Transport ``shm``: versions as files in shared memory, for trainer and RaaS of one host.

``files`` lays versions out and uses files again when no reader holds a lock on them; ``publisher`` names
them and rings; ``mapped`` opens and verifies one; ``bell`` hears the ring; ``receiver`` hands sources out.
"""
