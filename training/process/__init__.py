"""Processes of a run: supervised, one a device, and none left behind."""
