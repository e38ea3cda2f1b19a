"""int8: quantisation, and the decision whether to use it."""
