"""Layer 4: what the records say, as tables, charts and pages. It reads the store and writes nothing into it."""
