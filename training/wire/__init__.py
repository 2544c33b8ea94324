"""Messages between the shepherd and its workers, and the channels that carry them."""
