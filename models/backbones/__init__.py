"""Backbones: timm models and TResNet."""
