"""How a repository's name is read."""

from __future__ import annotations

import pytest

from imagebisect.errors import UsageError
from imagebisect.registry.repository import is_loopback, parse


@pytest.mark.parametrize(
    ("written", "url", "name", "shown"),
    [
        ("vllm/vllm-openai", "https://registry-1.docker.io", "vllm/vllm-openai", "vllm/vllm-openai"),
        ("docker.io/vllm/vllm-openai", "https://registry-1.docker.io", "vllm/vllm-openai", "vllm/vllm-openai"),
        ("ubuntu", "https://registry-1.docker.io", "library/ubuntu", "library/ubuntu"),
        ("ghcr.io/me/image", "https://ghcr.io", "me/image", "ghcr.io/me/image"),
        ("public.ecr.aws/q9t5s3a7/vllm-release-repo", "https://public.ecr.aws", "q9t5s3a7/vllm-release-repo", None),
        ("localhost/x", "http://localhost", "x", "localhost/x"),
        ("localhost:5000/a/b", "http://localhost:5000", "a/b", "localhost:5000/a/b"),
        ("127.0.0.1:5000/a", "http://127.0.0.1:5000", "a", "127.0.0.1:5000/a"),
        ("[::1]:5000/a", "http://[::1]:5000", "a", "[::1]:5000/a"),
        ("registry.lan:5000/a", "https://registry.lan:5000", "a", None),
    ],
)
def test_a_name_means_what_it_means_to_docker(written: str, url: str, name: str, shown: str | None) -> None:
    """The registry and the name in it follow docker's rule; only this machine's own is spoken to without TLS."""
    repository = parse(written)
    assert (repository.url, repository.name) == (url, name)
    assert str(repository) == (shown or written)


@pytest.mark.parametrize(
    "written", ["", "Vllm/OpenAI", "a/b:tag", "a/b@sha256:00", "https://hub.docker.com/r/a/b", "a//b", "a b", "../x"]
)
def test_what_is_no_repository_is_refused(written: str) -> None:
    """A tag, a digest, a URL or capitals are answered with how to write it."""
    with pytest.raises(UsageError, match="no repository") as caught:
        parse(written)
    assert "vllm/vllm-openai" in caught.value.next_step


def test_a_name_that_only_looks_local_is_not_trusted() -> None:
    """Plain http goes to loopback addresses, not to names that begin like one."""
    assert is_loopback("127.8.8.8:80")
    assert not is_loopback("localhost.example.org")
    assert not is_loopback("127.0.0.1.example.org:5000")
    assert not is_loopback("192.168.1.2:5000")
