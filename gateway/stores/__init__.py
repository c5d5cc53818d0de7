"""Where sessions are kept: one interface, several databases."""
