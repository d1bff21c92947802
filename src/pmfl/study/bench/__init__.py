"""How fast a round is here: one workload, this machine's own ceiling, and other programs on the same work."""
