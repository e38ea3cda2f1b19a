"""Calibrations and thresholds of a bundle, chosen on labelled photos."""
