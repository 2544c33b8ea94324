"""A model answers requests: an engine of slots, what schedules it, and its gateway.

Processes of this room have no compiler and no framework: a bundle, weights, numpy.
"""
