"""Backbones: timm models and CvT."""
