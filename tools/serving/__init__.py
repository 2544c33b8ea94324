"""Commands that serve a model, talk to it, and measure it."""
