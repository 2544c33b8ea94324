"""The topology of a group: rates of its edges, and ring orders."""
