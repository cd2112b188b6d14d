"""A world around the resource manager's core: its disk, workers, proxies, a network that breaks."""

from tests.scheduling.world.parties import LARGE, SMALL, Proxy, Worker
from tests.scheduling.world.world import World

__all__ = ["LARGE", "SMALL", "Proxy", "Worker", "World"]
