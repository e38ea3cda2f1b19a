"""The inference service: a bundle goes in, HTTP answers come out (never imports torch).

A request's way through the files: `http/` or `cli/` -> `pipeline` (`images` -> `batcher` ->
`engine` -> `scoring`) and back.
"""
