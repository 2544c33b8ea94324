"""Models of transformers from their folders: program, inputs, weights."""
