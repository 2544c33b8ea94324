"""The passes of this room."""
