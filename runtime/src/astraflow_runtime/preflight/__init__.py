"""The trainer's side of the numerical preflight. It is part of the runtime since the environment of
a trainer may lack the doctor, which calls it.
"""
