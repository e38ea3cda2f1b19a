"""Bundles of CLIP and SigLIP from ONNX files of a hub, without torch; start with `build.py`."""
