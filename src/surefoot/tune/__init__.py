"""Tune: make profiles from what a model does on your data."""
