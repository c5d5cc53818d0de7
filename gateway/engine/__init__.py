"""The agent engine behind the gateway and its port."""
