"""Which proxy the environment names for a server, by Go's rules.

The cases are facts of golang.org/x/net/http/httpproxy; `test_like_kubectl` compares with kubectl.
"""

from __future__ import annotations

import pytest

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.http_proxies import NetworkProxy, proxy_of_environment

CORP = "http://corp:3128"
NO_PROXY = (
    "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, "
    "10.0.0.0/30, 2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, "
    "2002:db8:a::45/64"
)


def proxy(server: str, **variables: str) -> str:
    found = proxy_of_environment(server, variables)
    return found.url if found else ""


@pytest.mark.parametrize(
    ("host", "is_proxied"),
    [
        ("localhost", False),
        ("127.0.0.1", False),
        ("127.0.0.2", False),
        ("[::1]", False),
        ("[::ffff:127.0.0.1]", False),
        ("[::2]", True),
        ("192.168.1.1", False),
        ("192.168.1.2", True),
        ("192.168.1.3", False),
        ("192.168.1.4", True),
        ("10.0.0.2", False),
        ("[::ffff:10.0.0.2]", False),
        ("10.0.0.4", True),
        ("[2001:db8::52:0:1]", False),
        ("[2001:DB8::52:0:1]", False),
        ("[2001:db8::52:0:2]", True),
        ("[2001:db8::52:0:3]", False),
        ("[2002:db8:a::123]", False),
        ("[2002:db8:a::123%25eth0]", False),
        ("[fe80::424b:c8be:1643:a1b6]", True),
        ("[1000::%25.foobar.com]", True),
        ("barbaz.net", True),
        ("www.barbaz.net", False),
        ("foobar.com", False),
        ("FooBar.com", False),
        ("www.foobar.com", False),
        ("foofoobar.com", True),
        ("baz.com", True),
        ("localhost.net", True),
        ("local.localhost", True),
        ("barbarbaz.net", True),
        ("wildcard.io", True),
        ("nested.wildcard.io", False),
        ("awildcard.io", True),
    ],
)
def test_hosts_of_no_proxy(host: str, is_proxied: bool) -> None:
    found = proxy(f"https://{host}:80", HTTPS_PROXY=CORP, NO_PROXY=NO_PROXY)
    assert found == (CORP if is_proxied else "")
    assert proxy(f"https://{host}:80", HTTPS_PROXY=CORP, NO_PROXY=f"x.test, * ,{NO_PROXY}") == ""


@pytest.mark.parametrize(
    ("no_proxy", "server", "is_proxied"),
    [
        ("10.0.0.0/8", "https://10.1.2.3", False),
        ("10.1.2.3/8", "https://10.200.0.1", False),
        ("10.0.0.0/8", "https://api.test", True),
        ("10.0.0.0/8:443", "https://10.1.2.3", True),
        ("10.0.0.0/255.0.0.0", "https://10.1.2.3", True),
        ("10.0.0.0/33", "https://10.1.2.3", True),
        ("10.", "https://10.1.2.3", True),
        ("api.test:443", "https://api.test", False),
        ("api.test:443", "https://api.test:6443", True),
        ("api.test:80", "http://api.test", False),
        (".test:6443", "https://api.test:6443", False),
        ("*.test:6443", "https://api.test:443", True),
        ("test", "https://api.test", False),
        ("::1", "https://[2001:db8::1]", True),
        ("[2001:db8::1]", "https://[2001:db8::1]", True),
        ("[2001:db8::1]:443", "https://[2001:db8::1]", False),
        ("2001:db8::/32", "https://[2001:db8::1]:6443", False),
        ("0.0.0.0/0", "https://[2001:db8::1]", True),
        (".示例.com", "https://www.示例.com", False),
        ("xn--fsq092h.com", "https://www.示例.com", False),
        ("示例.com", "https://www.xn--fsq092h.com", False),
        (":1", "https://api.test:1", True),
        (",, ,", "https://api.test", True),
        ("http://api.test", "https://api.test", True),
    ],
)
def test_kinds_of_entries(no_proxy: str, server: str, is_proxied: bool) -> None:
    found = proxy(server, HTTP_PROXY=CORP, HTTPS_PROXY=CORP, no_proxy=no_proxy)
    assert found == (CORP if is_proxied else "")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://corp:3128", "http://corp:3128"),
        ("corp:3128", "http://corp:3128"),
        ("corp", "http://corp:80"),
        ("10.0.0.1:3128", "http://10.0.0.1:3128"),
        ("[2001:db8::1]:3128", "http://[2001:db8::1]:3128"),
        ("https://corp", "https://corp:443"),
        ("HTTPS://Corp/", "https://corp:443"),
        ("socks5://corp", "socks5://corp:1080"),
        ("socks5h://corp:9", "socks5h://corp:9"),
        (" http://corp:3128\n", "http://corp:3128"),
        ("", ""),
        (" ", ""),
    ],
)
def test_forms_of_a_proxy(text: str, url: str) -> None:
    assert proxy("https://api.test", HTTPS_PROXY=text) == url


@pytest.mark.parametrize(
    "text", ["ftp://corp", "http://", "http://corp:x", "http://corp:99999", "socks4://corp"]
)
def test_an_invalid_proxy_names_its_variable(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        proxy("https://api.test", https_proxy=text)
    assert (caught.value.field, caught.value.value) == ("https_proxy", text)
    assert "socks5://HOST:PORT" in caught.value.expected
    # One that does not count for the server is not looked at.
    assert proxy("https://127.0.0.1", https_proxy=text) == ""
    assert proxy("http://api.test", https_proxy=text) == ""


@pytest.mark.parametrize(
    "text", ["ftp://ada:secret@corp", "ada:secret@", "http://ada:sec/ret@corp"]
)
def test_an_error_does_not_show_the_password(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        proxy("https://api.test", HTTPS_PROXY=text)
    assert "***@" in caught.value.message
    assert "sec" not in caught.value.message


def test_which_variable_counts() -> None:
    both = {"https_proxy": "lower", "HTTPS_PROXY": "upper", "HTTP_PROXY": "plain"}
    assert proxy("https://api.test", **both) == "http://lower:80"
    assert proxy("https://api.test", **{**both, "https_proxy": ""}) == "http://upper:80"
    assert proxy("http://api.test", **both) == "http://plain:80"
    assert proxy("https://api.test", HTTP_PROXY=CORP, ALL_PROXY=CORP) == ""
    assert proxy("https://api.test", no_proxy="x.test", NO_PROXY="*", **both) == "http://lower:80"


def test_a_cgi_program_does_not_use_what_its_clients_can_set() -> None:
    cgi = {"REQUEST_METHOD": "GET", "HTTP_PROXY": CORP, "HTTPS_PROXY": CORP}
    with pytest.raises(InvalidRequestError, match="CGI"):
        proxy("http://api.test", **cgi)
    assert proxy("https://api.test", **cgi) == CORP


def test_login_and_text_of_a_proxy() -> None:
    found = NetworkProxy.parse("http://ada:p%40ss@corp:3128", "HTTPS_PROXY")
    assert (found.user, found.password) == ("ada", "p@ss")
    assert found.headers == {"Proxy-Authorization": "Basic YWRhOnBAc3M="}
    assert str(found) == "http://corp:3128 (set by HTTPS_PROXY)"
    assert "p@ss" not in repr(found)
    assert NetworkProxy.parse(CORP, "x").headers == {}
