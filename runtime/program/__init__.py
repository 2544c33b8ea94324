"""A compiled program on its devices, and the collectives that it imports."""
