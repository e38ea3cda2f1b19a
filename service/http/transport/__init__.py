"""Transport: what happens below ASGI, in uvicorn's protocol."""
