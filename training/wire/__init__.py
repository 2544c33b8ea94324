"""Messages between the shepherd and its workers, and what carries them."""
