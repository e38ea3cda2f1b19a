"""Fuzzing: bytes that nobody would think of, for the decoder alone and for the whole server."""
