"""Providers by name: their keys from the environment, their faults in one line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gateway.engine.models.pydantic_ai import PydanticAIModel
from gateway.engine.models.responses import OpenResponses

if TYPE_CHECKING:
    from pydantic_ai.models import Model as TheirModel

    from gateway.engine.model import RetryOptions


LONGEST_SILENCE_S = 1200
"""What Google recommends to wait for a long thought."""


def connect(
    provider: str,
    model: str,
    url: str | None = None,
    *,
    settings: dict[str, Any] | None = None,
    retry: RetryOptions | None = None,
) -> PydanticAIModel:
    """Give a provider's model, its key from the environment. Raises ValueError and ImportError, in one line each."""
    try:
        from pydantic_ai.exceptions import UserError
    except ImportError:
        raise ImportError("providers need the gateway's extra `models`") from None
    responses = OpenResponses()
    try:
        match provider:
            case "openai":
                return openai_compatible(model, base_url=url, settings=settings, retry=retry)
            case "anthropic":
                from pydantic_ai.models.anthropic import AnthropicModel
                from pydantic_ai.providers.anthropic import AnthropicProvider

                found: TheirModel = AnthropicModel(model, provider=AnthropicProvider(base_url=url))
            case "google":
                import httpx2
                from pydantic_ai.models.google import GoogleModel
                from pydantic_ai.providers.google import GoogleProvider

                client = httpx2.AsyncClient(timeout=httpx2.Timeout(LONGEST_SILENCE_S, connect=5))
                client.event_hooks = {"response": [responses.opened]}
                found = GoogleModel(model, provider=GoogleProvider(base_url=url, http_client=client))
            case _ if url is not None:
                raise ValueError(f"{provider} takes no URL; an OpenAI-compatible endpoint is openai:NAME with one")
            case _:
                return PydanticAIModel(f"{provider}:{model}", settings=settings, retry=retry)
        return PydanticAIModel(found, settings=settings, retry=retry, needs_finish_reason=True, responses=responses)
    except UserError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except ImportError as error:
        raise ImportError(str(error).splitlines()[0]) from None


def openai_compatible(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    settings: dict[str, Any] | None = None,
    retry: RetryOptions | None = None,
    needs_finish_reason: bool = True,
) -> PydanticAIModel:
    """Make a model behind any endpoint that speaks OpenAI's chat completions, at ``base_url`` (ends in ``/v1``).

    Default: the environment's ``OPENAI_BASE_URL``, else OpenAI's own. Without ``api_key`` the environment's
    ``OPENAI_API_KEY`` is used; other endpoints may need none. An answer that ends without a finish reason has broken
    off and fails the run; the few endpoints that never send one want ``needs_finish_reason`` False.
    """
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    base_url = base_url or os.environ.get("OPENAI_BASE_URL")
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=needs_finish_reason)
    found = OpenAIChatModel(model, provider=OpenAIProvider(base_url=base_url, api_key=api_key), profile=profile)
    return PydanticAIModel(found, settings=settings, retry=retry, priced=base_url is None)
