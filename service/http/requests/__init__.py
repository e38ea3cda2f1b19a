"""Requests: bodies, parameters, uploads and image URLs."""
