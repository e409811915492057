"""Talk to an OpenAI-compatible endpoint with bounded time, bounded attempts and errors that leak nothing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from magi2.errors import ConfigError, InfrastructureError, InputError, Magi2Error
from magi2.prompts.retry_after import pause_before

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

# Source: MAGI-2 preview inference code, defaults of prompt enhancement.
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com/v1beta/openai/"
DEFAULT_MODEL = "gemini-3.1-pro-preview"
DEFAULT_MAX_TOKENS = 16384

_CONNECT_SECONDS = 10.0
_RETRYABLE = (408, 409, 429)
_SETTING_AT_FAULT = (401, 403, 404, 405)

Message = dict[str, Any]


@dataclass(frozen=True)
class EndpointSettings:
    """Where captions come from.

    `timeout_s` bounds one question over all its attempts and the pauses between them; `max_retries` are attempts beyond
    the first, after 408, 409, 429, 5xx and connection failures. `temperature` None leaves the choice to the provider.
    Raises: ConfigError for a value that cannot work.
    """

    base_url: str = DEFAULT_BASE_URL
    model: str = DEFAULT_MODEL
    api_key: str = field(default="", repr=False)
    timeout_s: float = 300.0
    max_retries: int = 2
    temperature: float | None = None
    max_image_bytes: int = 4 * 1024 * 1024
    max_tokens: int = DEFAULT_MAX_TOKENS

    def __post_init__(self) -> None:
        if not self.base_url.lower().startswith(("http://", "https://")) or not self.host:
            raise ConfigError("the endpoint's base_url is no http(s) address", hint="for example http://host:8000/v1")
        if not self.model.strip():
            raise ConfigError("the endpoint's model is blank")
        if not self.timeout_s > 0:
            raise ConfigError(f"the endpoint's timeout_s is {self.timeout_s}, needs more than 0")
        if self.max_retries < 0:
            raise ConfigError(f"the endpoint's max_retries is {self.max_retries}, needs 0 or more")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ConfigError(f"the endpoint's temperature is {self.temperature}, needs 0 to 2")
        if self.max_image_bytes < 1 or self.max_tokens < 1:
            raise ConfigError("the endpoint's max_image_bytes and max_tokens need 1 or more")

    @property
    def host(self) -> str:
        """The host of the endpoint: all of its address that errors and logs show."""
        try:
            return urlsplit(self.base_url).hostname or ""
        except ValueError:
            return ""


@dataclass(frozen=True)
class Reply:
    """The first choice of a chat completion; blank text when there was none."""

    text: str
    finish_reason: str | None = None
    refusal: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    model: str = ""


class ChatClient(Protocol):
    """What the enhancement needs from an endpoint; `CaptionClient` is the real one."""

    def complete(
        self, messages: Sequence[Message], *, model: str, max_tokens: int, response_format: Mapping[str, Any]
    ) -> Reply:
        """One completion. Raises InfrastructureError when trying again later may help, else ConfigError/InputError."""
        ...


class CaptionClient:
    """A `ChatClient` through the `openai` package. Holds no connection between questions."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings

    def complete(
        self, messages: Sequence[Message], *, model: str, max_tokens: int, response_format: Mapping[str, Any]
    ) -> Reply:
        """The reply to one question, within `timeout_s` over all attempts.

        An endpoint that asks to be left alone for a while (`Retry-After`) is, unless that takes longer.
        Raises: ConfigError (the endpoint refuses the key, the address or the model), InputError (it refuses this
        request), InfrastructureError (overload, failure, timeout, no connection or no sensible answer).
        """
        import openai  # takes most of a second, and prompts that are used as written never need it

        request: dict[str, Any] = {
            "messages": list(messages),
            "model": model,
            "max_tokens": max_tokens,
            "response_format": dict(response_format),
        }
        if self._settings.temperature is not None:
            request["temperature"] = self._settings.temperature
        try:
            return _run(self._ask(request))
        except TimeoutError:
            raise self._unavailable(f"gave no answer within {self._settings.timeout_s:g} s") from None
        except openai.APIStatusError as error:
            raise self._refused(error.status_code) from None
        except openai.APITimeoutError:
            raise self._unavailable(f"did not respond in {self._settings.max_retries + 1} attempts") from None
        except openai.APIConnectionError:
            raise self._unavailable(f"cannot be reached in {self._settings.max_retries + 1} attempts") from None
        except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
            # A body that is no chat completion: proxies answer 200 with a page of their own.
            raise self._unavailable(f"answered with something else than a completion: {type(error).__name__}") from None

    async def _ask(self, request: dict[str, Any]) -> Reply:
        import openai

        settings = self._settings
        async with openai.AsyncOpenAI(
            api_key=settings.api_key or "none",  # local servers need no key, the SDK needs one
            base_url=settings.base_url,
            timeout=openai.Timeout(settings.timeout_s, connect=min(_CONNECT_SECONDS, settings.timeout_s)),
            max_retries=0,  # the SDK heeds no Retry-After beyond two minutes, and none of our limit
        ) as client:
            # The SDK's timeout holds per phase and attempt; this one holds for all of them together.
            async with asyncio.timeout(settings.timeout_s) as limit:
                completion = await self._attempt(client, request, limit)
        return _reply(completion, request["model"])

    async def _attempt(
        self, client: openai.AsyncOpenAI, request: dict[str, Any], limit: asyncio.Timeout
    ) -> openai.types.chat.ChatCompletion:
        """The first completion that comes. Raises what the last attempt does."""
        import openai

        for attempt in range(1, self._settings.max_retries + 1):
            try:
                return cast("openai.types.chat.ChatCompletion", await client.chat.completions.create(**request))
            except openai.APIStatusError as error:
                if not _may_pass(error.status_code):
                    raise
                pause, what = pause_before(attempt + 1, error.response.headers), f"answered {error.status_code}"
            except openai.APIConnectionError:
                pause, what = pause_before(attempt + 1, {}), "cannot be reached"
            left = (limit.when() or math.inf) - asyncio.get_running_loop().time()
            if pause > left:
                limits = f"{left:.0f} s are left of {self._settings.timeout_s:g} s"
                raise self._unavailable(f"{what} and needs a pause of {pause:.0f} s, {limits}") from None
            await asyncio.sleep(pause)
        return cast("openai.types.chat.ChatCompletion", await client.chat.completions.create(**request))

    def _refused(self, status: int) -> Magi2Error:
        if _may_pass(status):
            return self._unavailable(f"answered {status} in {self._settings.max_retries + 1} attempts")
        if status in _SETTING_AT_FAULT:
            return ConfigError(
                f"{self._settings.host} answered {status}", hint="check the endpoint's base_url, model and api_key"
            )
        return InputError(f"{self._settings.host} answered {status}: it refuses this request")

    def _unavailable(self, what: str) -> InfrastructureError:
        return InfrastructureError(f"{self._settings.host} {what}")


def _may_pass(status: int) -> bool:
    return status >= 500 or status in _RETRYABLE


def _run(question: Coroutine[Any, Any, Reply]) -> Reply:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(question)
    with ThreadPoolExecutor(1) as pool:  # called from inside an event loop, which must not be entered twice
        return pool.submit(asyncio.run, question).result()


def _reply(completion: openai.types.chat.ChatCompletion, model: str) -> Reply:
    usage = completion.usage
    counts = {
        name: int(count)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        if (count := getattr(usage, name, None)) is not None
    }
    answered_by = completion.model or model
    if not completion.choices:
        return Reply("", usage=counts, model=answered_by)
    choice = completion.choices[0]
    text, refusal = choice.message.content or "", choice.message.refusal
    if not isinstance(text, str):
        raise TypeError("message content is not text")
    return Reply(text, choice.finish_reason, refusal, counts, answered_by)
