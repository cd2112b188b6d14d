"""Reads the service at a place."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from shared_pathways_service.cli.display.output import print_aside
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.operations.service_readers.base import ServiceReader
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.reader_choice import make_reader
from shared_pathways_service.runtime.settings import Settings

__all__ = ["manager_of", "reader_of"]


def reader_of(place: Place, settings: Settings) -> ServiceReader:
    """Returns the reader of the service at a place, with warnings on standard error."""
    return make_reader(place.service, settings, lambda text: print_aside(f"warning: {text}"))


def manager_of(place: Place, settings: Settings) -> AbstractAsyncContextManager[Manager]:
    """Connects to the resource manager at a place; see `ServiceReader.manager`."""
    return reader_of(place, settings).manager()
