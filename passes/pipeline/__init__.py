"""Pipeline stages: microbatches, the cut into stages, and tasks on devices."""
