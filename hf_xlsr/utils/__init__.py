"""Helpers that every package may use."""
