"""Label sets: labels of the user's own, from a definition to the queries of the open head.

A set's way through the files: `definition` (what was given) -> `texts` (text -> embedding) ->
`queries` (embedding -> label query) -> `label_set` (the snapshot that requests pin). `files`
reads definitions from disk, `store` keeps them, `catalogue` holds all sets of a process.
"""
