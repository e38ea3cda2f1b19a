"""The Open Inference Protocol v2 over REST, for clients of Triton and KServe.

Specification: https://github.com/open-inference/open-inference-protocol
"""
