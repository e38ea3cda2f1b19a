"""Accuracy: measures a bundle's scores and calibrates thresholds."""
