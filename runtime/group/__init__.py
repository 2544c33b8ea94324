"""Groups of members: rendezvous, membership, failure detection, and state transfer."""
