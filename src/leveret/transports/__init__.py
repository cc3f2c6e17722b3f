"""Transports: how messages reach a broker. One file or folder a technology; none imports another."""
