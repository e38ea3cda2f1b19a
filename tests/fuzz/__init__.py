"""Fuzzing of the decoder alone and of the whole server."""
