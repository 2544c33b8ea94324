"""The HTTP server: OpenAI's routes, keys, streams, and the loop that drives an engine."""
