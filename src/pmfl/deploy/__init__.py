"""Layer 4: the same method files between real machines, with Flower's network and keys. Needs the extra `deploy`."""
