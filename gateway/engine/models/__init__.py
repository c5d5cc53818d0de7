"""Models behind the port."""
