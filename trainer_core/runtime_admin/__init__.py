"""Runtimes for administrators: build, validate, compare, apply and migrate."""
