"""The Open Inference Protocol v2 over REST: tensors in, tensors out, around the same pipeline.

`request.py` reads an inference request, with `tensors.py` for its inputs; `answer.py` writes the
outputs; `metadata.py` says what there is; `errors.py` gives errors the protocol's shape. The routes
are in `routes/open_inference.py`.
Specification: https://github.com/open-inference/open-inference-protocol
"""
