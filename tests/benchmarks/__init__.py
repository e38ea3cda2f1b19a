"""Measurements that are run by hand; none is a test."""
