"""What PyTorch says and torch-mlir drops: stops, rules, sides of ties, randomness."""
