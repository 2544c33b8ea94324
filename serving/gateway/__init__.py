"""The HTTP server: OpenAI's routes, keys, streams, and what drives an engine."""
