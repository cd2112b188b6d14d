"""``python -m …``: this project's proxy, with the service of Google's; `proxy` starts it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from shared_pathways_service.servers.proxy.main import main

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.session.service import ProxyService


def _service(*args: Any, **kwargs: Any) -> ProxyService:
    # XLA reads its flags once, which `main` sets before this.
    from shared_pathways_service.testing.google_images.one_client import (  # noqa: PLC0415
        OneClientService,
    )

    return OneClientService(*args, **kwargs)


if __name__ == "__main__":
    main(sys.argv[1:], make_service=_service)
