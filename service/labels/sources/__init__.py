"""How a label is known: `source` has the ways of a set, `learnt` those of one label."""
