"""Calling and answering: requests that wait for a reply, on ports alone."""
