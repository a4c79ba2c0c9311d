"""Bytes and values that nobody would send on purpose, into every parser that reads a stranger."""
