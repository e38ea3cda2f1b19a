"""Heads: image tokens to logits. ML-Decoder is `ml_decoder.py`; `baselines.py` compares with it."""
