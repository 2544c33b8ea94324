"""What passes know about a program without running it: loops, cost, memory."""
