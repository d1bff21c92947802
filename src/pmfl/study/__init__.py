"""Layer 3: questions and records. What a study asks, how its runs are played, and where the answers are kept."""
