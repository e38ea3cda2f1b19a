"""A server process: uvicorn's protocol, ports, workers, load shedding."""
