"""HTTP: requests in, answers and problems out, around the pipeline.

`server.py` runs `app.py`, whose `routes/` ask the pipeline; `uploads.py` reads bodies,
`problems.py` maps errors to statuses.
"""
