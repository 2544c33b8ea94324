"""A gradient becomes a training program: optimizer, accumulation, outer algorithm."""
