"""A foreign model becomes a Module with a Signature."""
