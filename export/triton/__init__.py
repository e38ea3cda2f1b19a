"""Triton: a model repository made from a bundle."""
