"""The services of a run in one process, on a virtual clock and a network with faults; everything is determined by a seed.

What runs is the real code: the HTTP app, state and journal of the dataflow, the control loop of a RaaS with its client, the
loop of a trainer with its client, checkpoints and numbering of versions. Only engine, model, transport, network and clock are toys.
"""
