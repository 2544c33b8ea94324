"""The collectives that a program calls, on fixed and on elastic groups."""
