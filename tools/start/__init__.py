"""The first minutes with pcp: a folder to begin with, and completion in shells."""
