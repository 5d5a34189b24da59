"""HTTP in, SSE out. No rule of its own: it translates, checks who asks, and lets the engine decide."""
