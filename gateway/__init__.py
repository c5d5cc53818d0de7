"""A realtime gateway for AI agents."""
