"""The inner and outer steps of one worker, by the functions of a training bundle."""
