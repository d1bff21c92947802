"""Layer 0: the nouns and the loop. Knows torch and numpy, and nothing above itself."""
