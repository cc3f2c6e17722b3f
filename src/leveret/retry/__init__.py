"""Retries: taken in, stored, due, published again, and only then removed."""
