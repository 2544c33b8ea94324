"""The guards of a run: values, votes, conduct and progress of its members."""
