"""Scheduling: the queue, batches, threads and cores, for items of any kind."""
