"""Layer 2: where clients run. No method code and no mathematics."""
