"""Alarms: what somebody must be told, and how it reaches them."""
