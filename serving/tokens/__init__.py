"""Text to tokens and back: vocabularies, chat templates, stop strings, grammars."""
