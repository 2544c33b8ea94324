"""Where `pcp launch` can start a run: one module an engine.

Each has `flags(parser)`, which adds its own flags, and `launch(plan, flags)`.
"""
