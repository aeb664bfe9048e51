"""Runtimes for administrators: build, validate, compare, apply."""
