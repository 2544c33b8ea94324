"""Links between two members: frames over TCP, memory or a process; authentication."""
