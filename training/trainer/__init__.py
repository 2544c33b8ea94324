"""The inner and outer steps of one worker, as a training bundle says them."""
