"""HTTP to a registry: bearer tokens, retries, deadlines, and errors that say what to do.

No secret is ever part of an error: messages are made of the URL without its query, the status and the registry's
own error code.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import stamina

from imagebisect.errors import EnvironmentFault
from imagebisect.outcome import Cause
from imagebisect.registry.credentials import Credentials, Stored, stored
from imagebisect.registry.repository import Repository, is_loopback

# Without a handler of its own, each retry would print a bare word on stderr.
logging.getLogger("stamina").addHandler(logging.NullHandler())

BODY_LIMIT = 16 * 1024 * 1024
"""Bytes; a registry's own limit for a manifest is 4 MiB, a long tag list is well below this."""

_CHALLENGE = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_AGENT = "imagebisect"
_TOO_MANY, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 429, 401, 403, 404


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a registry is waited for, all in seconds but `attempts`."""

    attempts: int = 4
    total_s: float = 90.0
    wait_initial_s: float = 0.5
    longest_retry_after_s: float = 30.0
    connect_s: float = 10.0
    read_s: float = 30.0
    body_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A registry's answer. `headers` are case-insensitive."""

    status: int
    headers: httpx.Headers
    body: bytes
    url: str

    def json(self) -> Any:
        """The body as JSON; EnvironmentFault when it is none."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise EnvironmentFault(
                "the registry answered with something that is no JSON",
                where=self.url,
                next_step="look whether a proxy or a login page stands between",
                cause=Cause.REGISTRY,
            ) from error


class Unreachable(EnvironmentFault):
    """The registry cannot be asked for now, whatever the question."""


class _Again(Exception):
    """A status that another try may mend."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


@dataclass
class Client:
    """Speaks to the registry of one repository; a context manager."""

    repository: Repository
    patience: Patience = field(default_factory=Patience)
    _http: httpx.Client = field(init=False, repr=False)
    _authorization: str = field(init=False, default="", repr=False)
    _stored: Stored | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        timeout = httpx.Timeout(self.patience.read_s, connect=self.patience.connect_s)
        self._http = httpx.Client(
            timeout=timeout,
            follow_redirects=True,
            max_redirects=5,
            headers={"User-Agent": _AGENT},
            # As docker does: what is on this machine is never reached through a proxy.
            trust_env=not is_loopback(urlsplit(self.repository.url).netloc),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def get(self, path: str, *, accept: str = "application/json", method: str = "GET") -> Reply:
        """Ask for a path of the registry (`/v2/...`), with a token where one is demanded.

        Only 2xx and 404 come back; EnvironmentFault for everything else.
        """
        url = f"{self.repository.url}{path}"
        reply = self._send(method, url, headers=self._headers(accept))
        if reply.status == _UNAUTHORIZED:
            self._authorization = self._answer(reply)
            if self._authorization:
                reply = self._send(method, url, headers=self._headers(accept))
        return self._usable(reply)

    def get_public(self, url: str) -> Reply:
        """Ask a listing that needs no login. Only 2xx and 404 come back."""
        return self._usable(self._send("GET", url, headers={"Accept": "application/json"}))

    def _headers(self, accept: str) -> dict[str, str]:
        return {"Accept": accept} | ({"Authorization": self._authorization} if self._authorization else {})

    def _usable(self, reply: Reply) -> Reply:
        if reply.status in (_UNAUTHORIZED, _FORBIDDEN):
            raise self._denied(reply)
        if reply.status == _NOT_FOUND or 200 <= reply.status < 300:
            return reply
        raise _refused(reply)

    # ------------------------------------------------------------------------ tokens

    def _answer(self, reply: Reply) -> str:
        """The Authorization that a 401 asks for; empty when there is none to give."""
        for challenge in reply.headers.get_list("www-authenticate"):
            scheme, _, rest = challenge.partition(" ")
            fields = {name.lower(): value for name, value in _CHALLENGE.findall(rest)}
            if scheme.lower() == "bearer" and "realm" in fields:
                return f"Bearer {self._token(fields)}"
            if scheme.lower() == "basic" and (known := self._credentials()) is not None and known.password:
                pair = f"{known.username}:{known.password}".encode()
                return f"Basic {base64.b64encode(pair).decode()}"
        return ""

    def _credentials(self) -> Credentials | None:
        if self._stored is None:
            self._stored = stored(self.repository.credentials_key)
        return self._stored.credentials

    def _token(self, challenge: Mapping[str, str]) -> str:
        realm = challenge["realm"]
        parts = urlsplit(realm)
        ours = parts.scheme == "http" and is_loopback(parts.netloc) and is_loopback(self.repository.host)
        if parts.scheme != "https" and not ours:
            raise EnvironmentFault(
                "the registry sends us for a token to an address that is not encrypted",
                where=_bare(realm),
                next_step="ask who runs it for an https address; no password is sent there",
                cause=Cause.REGISTRY,
            )
        scope = challenge.get("scope") or f"repository:{self.repository.name}:pull"
        asked = {"service": challenge.get("service", ""), "scope": scope}
        known = self._credentials()
        if known is not None and known.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": known.identity_token,
                "client_id": "bisect",
                **asked,
            }
            reply = self._send("POST", realm, form=form)
        else:
            auth = httpx.BasicAuth(known.username, known.password) if known is not None and known.password else None
            reply = self._send("GET", str(httpx.URL(realm, params=_query(realm) | asked)), auth=auth)
        if reply.status in (400, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND):
            raise self._denied(reply)
        if not 200 <= reply.status < 300:
            raise _refused(reply)
        answer = reply.json()
        token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise EnvironmentFault("the registry's token service gave no token", where=reply.url, cause=Cause.REGISTRY)
        return token

    def _denied(self, reply: Reply) -> EnvironmentFault:
        host = "" if self.repository.listing_url else f" {self.repository.host}"
        known = self._credentials()
        said = "with the stored login" if known is not None else "without a login"
        trouble = f"; {self._stored.trouble}" if self._stored is not None and self._stored.trouble else ""
        return EnvironmentFault(
            f"the registry does not let us read {self.repository} {said} (status {reply.status}{trouble})",
            where=reply.url,
            next_step=f"check the repository's name; if it is private, `docker login{host}`",
            cause=Cause.REGISTRY,
        )

    # ------------------------------------------------------------------------ sending

    def _send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
    ) -> Reply:
        """One request, tried again for a broken connection, a 5xx or a 429. EnvironmentFault at the end of patience."""
        patience = self.patience
        try:
            for attempt in stamina.retry_context(
                on=self._wait,
                attempts=patience.attempts,
                timeout=patience.total_s,
                wait_initial=patience.wait_initial_s,
            ):
                with attempt:
                    return self._once(method, url, headers=headers, form=form, auth=auth)
        except _Again as error:
            raise _refused(error.reply) from None
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _unreachable(url, error) from None
        raise AssertionError("retry_context returns or raises")

    def _wait(self, error: Exception) -> bool | float:
        """Whether to try again, and after how many seconds where the registry says so."""
        if isinstance(error, _Again):
            after = _retry_after(error.reply)
            if after is None:
                return True
            return after if after <= self.patience.longest_retry_after_s else False
        return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)

    def _once(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None,
        form: Mapping[str, str] | None,
        auth: httpx.Auth | None,
    ) -> Reply:
        with self._http.stream(method, url, headers=headers, data=form, auth=auth) as response:
            body = bytearray()
            until = time.monotonic() + self.patience.body_s
            for piece in response.iter_bytes():
                body += piece
                if len(body) > BODY_LIMIT:
                    raise EnvironmentFault(
                        f"the registry's answer is longer than {BODY_LIMIT // 2**20} MiB",
                        where=_bare(url),
                        next_step="look whether this is a registry",
                        cause=Cause.REGISTRY,
                    )
                if time.monotonic() > until:
                    raise httpx.ReadTimeout(f"not complete after {self.patience.body_s:g} s")
            reply = Reply(
                status=response.status_code, headers=response.headers, body=bytes(body), url=_bare(str(response.url))
            )
        if reply.status == _TOO_MANY or reply.status >= 500:
            raise _Again(reply)
        return reply


def _query(url: str) -> dict[str, str]:
    return dict(httpx.URL(url).params)


def _bare(url: str) -> str:
    """A URL without what may hold a secret: its query and any user in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _retry_after(reply: Reply) -> float | None:
    """Seconds that the registry asks us to wait; a date is left to our own pace."""
    text = reply.headers.get("retry-after", "").strip()
    return float(text) if text.isdigit() else None


def _said(reply: Reply) -> str:
    """The registry's own error code, such as ` MANIFEST_UNKNOWN`; free text is left out."""
    try:
        code = json.loads(reply.body)["errors"][0]["code"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return f" {code}" if isinstance(code, str) and re.fullmatch(r"[A-Za-z_]{1,40}", code) else ""


def _refused(reply: Reply) -> EnvironmentFault:
    if reply.status == _TOO_MANY:
        wait = _retry_after(reply)
        when = f" for {wait:g} s" if wait else ""
        return Unreachable(
            f"the registry gives no more{when}: too many requests",
            where=reply.url,
            next_step="`docker login` has a higher limit; or wait and try again",
            cause=Cause.REGISTRY,
        )
    return EnvironmentFault(
        f"the registry answered {reply.status}{_said(reply)}",
        where=reply.url,
        next_step="try again later" if reply.status >= 500 else "look whether this is a registry of images",
        cause=Cause.REGISTRY,
    )


def _unreachable(url: str, error: Exception) -> Unreachable:
    said = " ".join(str(error).split()) or type(error).__name__
    host = urlsplit(url).netloc.rpartition("@")[2]
    if "CERTIFICATE_VERIFY_FAILED" in said:
        advice = "name its authority's certificate in SSL_CERT_FILE"
    elif "WRONG_VERSION_NUMBER" in said or "record layer" in said:
        advice = "plain http is spoken to this machine's own registries only; reach it under https or through localhost"
    else:
        advice = f"check the network, a proxy's settings and the registry's name: `curl -I https://{host}/v2/`"
        if url.startswith("http://"):
            advice = f"start it, or check its port: `curl -I http://{host}/v2/`"
    return Unreachable(
        f"the registry {host} could not be reached ({said[:200]})",
        where=_bare(url),
        next_step=advice,
        cause=Cause.REGISTRY,
    )
