"""The network among members: probes of its edges, and ring orders."""
