"""Pages and pictures that commands write."""
