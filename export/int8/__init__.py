"""int8: quantisation, and the layers that stay in float."""
