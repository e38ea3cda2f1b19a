"""Answers to clients."""
