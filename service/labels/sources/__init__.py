"""How a label is known, one module for each way; `source` lists what is asked of them."""
