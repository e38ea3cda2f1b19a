"""Backbones: timm models, TResNet and CvT."""
