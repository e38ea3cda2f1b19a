"""Scheduling: what runs when and on which core. Knows no images."""
