"""Facts of a whole program that no single op can see."""
