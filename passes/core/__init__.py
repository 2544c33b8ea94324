"""What passes share: passes and their options, rewriting, walks, constants."""
