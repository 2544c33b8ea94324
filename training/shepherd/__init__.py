"""The shepherd: sockets, disk and clock around the state machine of a run."""
