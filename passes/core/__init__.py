"""What passes share: the pass and its options, rewriting, walks, constants, functions."""
