"""Hypothesis on busy machines: no deadline, and failures that can be repeated."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "protocol",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("protocol")
