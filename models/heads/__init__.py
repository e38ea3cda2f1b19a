"""Heads: ML-Decoder and its relatives."""
