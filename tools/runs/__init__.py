"""Commands that look at runs from their folders: live, stopped or complete."""
