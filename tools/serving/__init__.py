"""Commands that serve a model, and the parts that they share."""
