"""The requests, answers and errors of other programs, each below a first part of its paths."""
