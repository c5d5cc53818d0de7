"""Models behind the port, by one string.

``scripted`` is the offline one, ``local`` a small real one on this machine (extra ``local``). ``openai:NAME``,
``anthropic:NAME`` and ``google:NAME`` are the providers of the extra ``models``, with their keys from
``OPENAI_API_KEY``, ``ANTHROPIC_API_KEY`` and ``GOOGLE_API_KEY``; with a URL ``openai`` is any endpoint that speaks
OpenAI's chat completions. Other prefixes that pydantic-ai knows (``groq:``, ``mistral:``, …) work where its package for
them is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.engine.model import Model, RetryOptions


def model_from(
    name: str, url: str | None = None, *, settings: dict[str, Any] | None = None, retry: RetryOptions | None = None
) -> Model:
    """Give the model of ``name``, at ``url`` where that is not the provider's own.

    ``settings`` are pydantic-ai's model settings (``temperature``, ``max_tokens``, ``thinking``, …). Raises ValueError,
    in one line, for what is no model or has no key, and ImportError where the extra that it needs is not installed.
    """
    if name == "scripted":
        from gateway.engine.models.scripted import ScriptedModel

        return ScriptedModel()
    if name == "local":
        from gateway.engine.models.local import LocalModel

        return LocalModel()
    provider, _, model = name.partition(":")
    if not provider or not model:
        raise ValueError(f"{name!r} is none of scripted, local, openai:NAME, anthropic:NAME, google:NAME")
    from gateway.engine.models.providers import connect

    return connect(provider, model, url, settings=settings, retry=retry)
