"""Stores: where retries and dead letters lie, each with its lease. One file a technology; none imports another."""
