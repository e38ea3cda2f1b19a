"""Bad input, faults, overload and intruders, thrown at a real server process.

Whatever a test does, the fixture `client` ends it with a good request that has to be answered.
`faulty_server.py` is the same server with an engine that fails when a photo tells it to.
Two kinds of fault are tested where their neighbours are: clients in one batch and kills during
registrations in `tests/e2e`.
"""
