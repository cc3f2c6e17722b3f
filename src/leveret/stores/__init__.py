"""Stores: where retries and dead letters lie, each with its lease. A folder a technology, and none imports another.

What all of them share lies beside the folders; what those with tables share lies in `sql`.
"""
