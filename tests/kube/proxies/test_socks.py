"""The bytes of SOCKS5, as RFC 1928 and RFC 1929 have them."""

from __future__ import annotations

import pytest

from shared_pathways_service.kube.socks import SocksError, connect_steps

GRANTED = bytes([5, 0, 0, 1])


def sent(
    *answers: bytes, host: str = "api.test", user: str = "", password: str = ""
) -> list[bytes]:
    """Returns what the client sends; each answer must have the length that it requests."""
    steps = connect_steps(host, 443, user=user, password=password)
    data, size = next(steps)
    all_sent = [data]
    for answer in answers:
        assert len(answer) == size
        try:
            data, size = steps.send(answer)
        except StopIteration:
            assert answer is answers[-1]
            return all_sent
        all_sent.append(data)
    raise AssertionError("the client waits for more")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("api.test", b"\x03\x08api.test"),
        ("10.1.2.3", b"\x01\x0a\x01\x02\x03"),
        ("2001:db8::1", b"\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01"),
        ("fe80::1%eth0", b"\x04\xfe\x80" + bytes(13) + b"\x01"),
    ],
)
def test_a_connection(host: str, address: bytes) -> None:
    assert sent(b"\x05\x00", GRANTED, bytes(6), host=host) == [
        b"\x05\x01\x00",
        b"\x05\x01\x00" + address + b"\x01\xbb",
        b"",
    ]


@pytest.mark.parametrize(
    "bound", [(b"\x05\x00\x00\x04", bytes(18)), (b"\x05\x00\x00\x03", b"\x05", b"proxy\0\0")]
)
def test_kinds_of_the_proxys_own_address(bound: tuple[bytes, ...]) -> None:
    assert len(sent(b"\x05\x00", *bound)) == 1 + len(bound)


def test_a_login() -> None:
    all_sent = sent(b"\x05\x02", b"\x01\x00", GRANTED, bytes(6), user="ada", password="pä")
    assert all_sent[:2] == [b"\x05\x02\x00\x02", b"\x01\x03ada\x03p\xc3\xa4"]
    # A proxy may also do without.
    assert sent(b"\x05\x00", GRANTED, bytes(6), user="ada")[0] == b"\x05\x02\x00\x02"


@pytest.mark.parametrize(
    ("answers", "user", "said"),
    [
        ([b"HT"], "", "does not speak SOCKS5"),
        ([b"\x05\xff"], "", "needs a user and a password"),
        ([b"\x05\x02"], "", "needs a user and a password"),
        ([b"\x05\x01"], "ada", "needs another login"),
        ([b"\x05\x02", b"\x01\x01"], "ada", "does not accept the password of user ada"),
        ([b"\x05\x00", b"\x05\x05\x00\x01"], "", "answered: connection refused"),
        ([b"\x05\x00", b"\x05\x63\x00\x01"], "", "answered: error 99"),
        ([b"\x05\x00", b"HTTP"], "", "does not speak SOCKS5"),
    ],
)
def test_refusals(answers: list[bytes], user: str, said: str) -> None:
    with pytest.raises(SocksError, match=said):
        sent(*answers, user=user)


def test_names_that_are_too_long() -> None:
    with pytest.raises(SocksError, match="more than 255 bytes"):
        sent(b"\x05\x00", host="x" * 256)
