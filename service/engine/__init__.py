"""The engine: ONNX Runtime sessions. Nothing else imports ONNX Runtime."""
