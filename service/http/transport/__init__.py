"""Below ASGI: uvicorn's protocol and load shedding."""
