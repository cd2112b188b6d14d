"""The authenticating proxies in front of a service's page that the documentation shows."""

from __future__ import annotations

from typing import Any, Final

from shared_pathways_service.manifests.page_parts import page_name

__all__ = ["HOST", "IAP_IN_FRONT", "OAUTH2_PROXY", "PAGE"]

HOST: Final = "tpus.example.org"
#: The page's Service, for a service of the name that docs/operations.md has.
PAGE: Final = page_name("pathways")
_PORT: Final = 80
_NAMESPACE: Final = "team-a"
_POLICY: Final = "networking.gke.io/v1"
_GATEWAY: Final = "gateway.networking.k8s.io/v1"
_PROXY: Final = "oauth2-proxy"
_PROXY_PORT: Final = 4180


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": _NAMESPACE}


def _of_page(kind: str, default: dict[str, Any]) -> dict[str, Any]:
    """Returns a policy of GKE's load balancer for the page's Service."""
    target = {"group": "", "kind": "Service", "name": PAGE}
    return {
        "apiVersion": _POLICY,
        "kind": kind,
        "metadata": _metadata(PAGE),
        "spec": {"default": default, "targetRef": target},
    }


IAP_IN_FRONT: Final[list[dict[str, Any]]] = [
    {
        "apiVersion": _GATEWAY,
        "kind": "Gateway",
        "metadata": _metadata(PAGE),
        "spec": {
            "gatewayClassName": "gke-l7-global-external-managed",
            "listeners": [
                {
                    "name": "https",
                    "protocol": "HTTPS",
                    "port": 443,
                    "hostname": HOST,
                    "tls": {"mode": "Terminate", "certificateRefs": [{"name": "tpus-tls"}]},
                }
            ],
        },
    },
    {
        "apiVersion": _GATEWAY,
        "kind": "HTTPRoute",
        "metadata": _metadata(PAGE),
        "spec": {
            "parentRefs": [{"name": PAGE}],
            "hostnames": [HOST],
            "rules": [{"backendRefs": [{"name": PAGE, "port": _PORT}]}],
        },
    },
    _of_page(
        "HealthCheckPolicy",
        {"config": {"type": "HTTP", "httpHealthCheck": {"requestPath": "/healthz"}}},
    ),
    _of_page(
        "GCPBackendPolicy",
        {
            # (The default of 30 s ends the stream of the page.)
            "timeoutSec": 3600,
            "iap": {
                "enabled": True,
                "clientID": "CLIENT_ID",
                "oauth2ClientSecret": {"name": "tpus-oauth-client"},
            },
        },
    ),
]


def _secret(variable: str, key: str) -> dict[str, Any]:
    return {
        "name": f"OAUTH2_PROXY_{variable}",
        "valueFrom": {"secretKeyRef": {"name": _PROXY, "key": key}},
    }


_LABELS: Final = {"app": _PROXY}
_CONTAINER: Final[dict[str, Any]] = {
    "name": _PROXY,
    "image": "quay.io/oauth2-proxy/oauth2-proxy:v7.8.1",
    "args": [
        "--provider=oidc",
        "--oidc-issuer-url=https://login.example.org",
        f"--redirect-url=https://{HOST}/oauth2/callback",
        "--email-domain=example.org",
        f"--upstream=http://{PAGE}",
        # The ID token, which the page verifies; and the name by which it was asked.
        "--pass-authorization-header=true",
        "--pass-host-header=true",
        # More often than ID tokens expire.
        "--cookie-refresh=4m",
        "--reverse-proxy=true",
        f"--http-address=0.0.0.0:{_PROXY_PORT}",
    ],
    "env": [
        _secret("CLIENT_ID", "client-id"),
        _secret("CLIENT_SECRET", "client-secret"),
        _secret("COOKIE_SECRET", "cookie-secret"),
    ],
    "ports": [{"containerPort": _PROXY_PORT}],
    "readinessProbe": {"httpGet": {"path": "/ping", "port": _PROXY_PORT}},
}

OAUTH2_PROXY: Final[list[dict[str, Any]]] = [
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(_PROXY),
        "spec": {
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": {"containers": [_CONTAINER]}},
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(_PROXY),
        "spec": {"selector": _LABELS, "ports": [{"port": _PORT, "targetPort": _PROXY_PORT}]},
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": _metadata(_PROXY),
        "spec": {
            "tls": [{"hosts": [HOST], "secretName": "tpus-tls"}],
            "rules": [
                {
                    "host": HOST,
                    "http": {
                        "paths": [
                            {
                                "path": "/",
                                "pathType": "Prefix",
                                "backend": {"service": {"name": _PROXY, "port": {"number": _PORT}}},
                            }
                        ]
                    },
                }
            ],
        },
    },
]
