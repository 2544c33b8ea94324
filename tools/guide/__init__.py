"""The guide's exercises: their answers, what is left out of them, and the checks."""
