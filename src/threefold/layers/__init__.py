"""The parts of a decoder, tensor parallel from the start."""
