"""Bad input, faults, overload and intruders, against a real server process.

Each test ends with a good request. Kills during registrations are in `tests/e2e`.
"""
