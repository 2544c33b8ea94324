"""Decoders of text from their config.json alone: prefill and decode over a cache."""
