"""Graphs: trace, optimise and verify ONNX graphs."""
