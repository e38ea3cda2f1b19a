"""Responses: what clients get."""
