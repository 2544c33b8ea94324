"""What fails, is killed, or lies."""
