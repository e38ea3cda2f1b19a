"""Requests: what clients send."""
