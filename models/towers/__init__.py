"""CLIP's and SigLIP's image and text towers, of `transformers`' own layers."""
