"""Runnable examples, each executed by a test."""
