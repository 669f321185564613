"""What engines have in common that stand before a server or a backend of their own; for plugins.

``desk`` decides which requests run and which wait; ``tokens`` are the checks on requests and the search for
stop sequences; ``model_folder`` knows what a version of the weights has to look like; ``child_server`` starts
a server as a child and says why it ended.
"""
