"""Lossy codecs for tensors on the wire, and error feedback."""
