"""Text to token ids and back; knows nothing about the engine."""
