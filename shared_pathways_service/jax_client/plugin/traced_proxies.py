"""Has `jax.profiler.trace` also profile the proxy of this process, and its executors.

JAX's profiler knows this process only. So its start also begins a profile of the proxy, and its end
brings that one's files into the same folder, with times on this process's clock. A service of
Google's images writes its profile itself: it is asked as pathwaysutils asks it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import trace_files
from .callbacks import OURS
from .device_profile import DeviceProfile, ProfileFailed

__all__ = ["end", "install", "profile_request", "serve"]

_log = logging.getLogger(__name__)

#: A running profile: stops it, given JAX's own stop and the directory of the files; without a
#: directory it is dropped.
_Stop = Callable[[Callable[[], Any], str], Any]

_BUCKET = "gs://"
#: The variable of pathwaysutils that names the buckets that may be written to; and its module.
_BUCKETS = "PATHWAYS_PROFILING_ALLOWED_GCS_BUCKETS"
_UPSTREAM = "pathwaysutils"
_TIME = "%Y_%m_%d_%H_%M_%S"
#: The release of JAX from which on pathwaysutils passes options on.
_SESSIONS_SINCE = (0, 9, 2)
#: Begins a profile of a client's proxy.
_begin: weakref.WeakKeyDictionary[Any, Callable[[str, Any], tuple[_Stop | None, Any]]]
_begin = weakref.WeakKeyDictionary()
_running: tuple[int, _Stop, str] | None = None


def serve(client: Any, address: str, token: str | None) -> None:
    """Profiles a client's proxy from now on, at ``unix:/path`` or ``host:port``."""
    if str(getattr(client, "platform_version", "")).startswith(OURS):
        _begin[client] = functools.partial(_begin_ours, address, token)
    else:
        _begin[client] = functools.partial(_begin_googles, weakref.ref(client))


def end(client: Any) -> None:
    """Profiles a client's proxy no more."""
    _begin.pop(client, None)


@functools.cache
def install() -> None:
    """Changes JAX's profiler in this process permanently; it is as before without a proxy."""
    profiler: Any = importlib.import_module("jax._src.profiler")
    public: Any = importlib.import_module("jax.profiler")
    changes = {"stop_and_get_fdo_profile": _dropping}
    session = getattr(profiler, "ProfileSession", None)
    if session is None:
        changes |= {"start_trace": _function_start, "stop_trace": _stopping}
    else:
        session.start = _session_start(session.start)
        session.stop = _session_stop(session.stop)
    for name, changed in changes.items():
        original = getattr(profiler, name, None)
        # (pathwaysutils makes the request itself, and calls JAX's function.)
        if original is None or str(original.__module__).startswith(_UPSTREAM):
            continue
        made = changed(original)
        for module in (profiler, public):
            if hasattr(module, name):
                setattr(module, name, made)


# ---- JAX's functions, in the form of each release


def _session_start(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        if self.log_dir is None or self.is_running:
            return original(self)

        def start_here(options: Any) -> Any:
            self.profiler_options = options
            return original(self)

        return _start(self.log_dir, self.profiler_options, start_here)

    return start


def _session_stop(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def stop(self: Any) -> Any:
        # (In memory only, or an error.)
        if self.log_dir is None or not self.is_running:
            return original(self)
        return _stop(lambda: original(self))

    return stop


def _function_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start_trace(
        log_dir: Any,
        create_perfetto_link: bool = False,
        create_perfetto_trace: bool = False,
        profiler_options: Any = None,
    ) -> Any:
        return _start(
            str(log_dir),
            profiler_options,
            lambda options: original(log_dir, create_perfetto_link, create_perfetto_trace, options),
        )

    return start_trace


def _stopping(original: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(original)
    def stop_trace() -> Any:
        return _stop(original)

    return stop_trace


def _dropping(original: Callable[[], Any]) -> Callable[[], Any]:
    """Changes a function that ends a profile which has no files."""

    @functools.wraps(original)
    def stop() -> Any:
        return _stop(original, keeps=False)

    return stop


def _start(log_dir: str, options: Any, start_here: Callable[[Any], Any]) -> Any:
    """Begins the proxy's profile first: what it refuses has begun nothing here."""
    global _running  # noqa: PLW0603 - as JAX's profile, of which a process has one
    begin = next(reversed(list(_begin.values())), None)
    is_ours = _running is not None and _running[0] == os.getpid()
    if is_ours and not _is_active():
        # It ended without its end here.
        _stop(lambda: None, keeps=False)
        is_ours = False
    stop = None
    if begin is not None and not is_ours:
        stop, options = begin(log_dir, options)
    try:
        made = start_here(options)
    except BaseException:
        if stop is not None:
            with contextlib.suppress(Exception):  # the first error counts
                stop(lambda: None, "")
        raise
    if stop is not None:
        _running = (os.getpid(), stop, log_dir)
    return made


def _is_active() -> bool:
    """Whether JAX has a profile; known only to a private part, named by its release."""
    profiler: Any = importlib.import_module("jax._src.profiler")
    state = getattr(profiler, "_profile_state", None)
    return any(getattr(state, name, None) is not None for name in ("session", "profile_session"))


def _stop(stop_here: Callable[[], Any], *, keeps: bool = True) -> Any:
    global _running
    running, _running = _running, None
    # (A forked child has its parent's, which it leaves to it.)
    if running is None or running[0] != os.getpid():
        return stop_here()
    return running[1](stop_here, running[2] if keeps else "")


# ---- a proxy of this project


def _begin_ours(
    address: str, token: str | None, log_dir: str, options: Any
) -> tuple[_Stop | None, Any]:
    if "://" in log_dir:
        _log.warning(
            "only this process is profiled: log_dir is %r, not a directory of this machine", log_dir
        )
        return None, options
    try:
        profile = DeviceProfile(
            address, token, host_tracer_level=getattr(options, "host_tracer_level", 2)
        )
    except ProfileFailed as error:
        if error.is_refused:
            raise RuntimeError(f"the proxy is not profiled: {error}") from error
        _log.warning("only this process is profiled: %s", error)
        return None, options
    return functools.partial(_stop_ours, profile), options


def _stop_ours(profile: DeviceProfile, stop_here: Callable[[], Any], log_dir: str) -> Any:
    with contextlib.ExitStack() as stack:
        stack.callback(profile.close)
        failure: ProfileFailed | None = None
        before = trace_files.files_below(log_dir) if log_dir else {}
        if log_dir:
            try:
                profile.stop()
            except ProfileFailed as error:
                failure = error
        # In any case: JAX's own profile must end.
        made = stop_here()
        if not log_dir:
            return made
        try:
            if failure is not None:
                raise failure
            own = trace_files.written_since(log_dir, before)
            if own is None:
                raise ProfileFailed(f"JAX wrote no profile to {log_dir}")
            files, notes = profile.collect(trace_files.began_at(own))
            if cut := trace_files.add_files(own.parent, files):
                notes.append(cut)
        except Exception as error:  # noqa: BLE001 - also of a damaged file: JAX's own is there
            _log.warning("the profile has only this process: %s", error)
        else:
            for note in notes:
                _log.warning("%s", note)
    return made


# ---- a service of Google's images


def profile_request(log_dir: str, options: Any) -> dict[str, Any]:
    """Returns the request to a service of Google's images, as pathwaysutils makes it.

    Args:
      log_dir: A folder of a bucket.
      options: `jax.profiler.ProfileOptions`; with a `session_id`, or None for the defaults of
        images of releases before JAX 0.9.2.
    """
    request: dict[str, Any] = {
        "traceLocation": log_dir,
        "maxNumHosts": 1,
        "includeResourceManagers": True,
    }
    if options is None:
        return request
    traced: dict[str, Any] = {"traceDirectory": log_dir}
    if options.host_tracer_level != _HOST_LEVEL:
        traced["hostTraceLevel"] = options.host_tracer_level
    further: dict[str, Any] = {}
    if options.python_tracer_level:
        further["enablePythonTracer"] = True
    if options.advanced_configuration:
        further["advancedConfiguration"] = {
            name: _configured(value) for name, value in options.advanced_configuration.items()
        }
    if further:
        traced["pwTraceOptions"] = further
    if options.session_id:
        traced["traceSessionName"] = options.session_id
    request["xprofTraceOptions"] = traced
    if options.duration_ms > 0:
        request["maxDurationSecs"] = options.duration_ms / 1000.0
    return request


#: The default level of the host's tracer.
_HOST_LEVEL = 2


def _configured(value: Any) -> dict[str, Any]:
    for kind, name in ((bool, "boolValue"), (int, "int64Value"), (str, "stringValue")):
        if isinstance(value, kind):
            return {name: value}
    raise ValueError(f"advanced_configuration has {value!r}, not a bool, an int or a str")


def _begin_googles(client: Any, log_dir: str, options: Any) -> tuple[_Stop | None, Any]:
    if _is_upstreams():
        return None, options
    if not log_dir.startswith(_BUCKET):
        raise ValueError(
            f"log_dir is {log_dir!r}, not gs://BUCKET/…: a service of Google's images writes its "
            "profile to a bucket by itself"
        )
    _check_bucket(log_dir)
    jax: Any = importlib.import_module("jax")
    has_sessions = jax.version.__version_info__ >= _SESSIONS_SINCE
    options = _in_a_session(options) if has_sessions else None
    text = json.dumps({"profileRequest": profile_request(log_dir, options)})
    # Before a profile, as pathwaysutils has it.
    jax.jit(lambda x: x + 1)(1).block_until_ready()
    run = _program(client(), text, has_result=options is not None)
    run()

    def stop(stop_here: Callable[[], Any], _log_dir: str) -> Any:
        # (The second run ends what the first one began.)
        try:
            run()
        finally:
            made = stop_here()
        return made

    return stop, options


def _check_bucket(log_dir: str) -> None:
    """Refuses a folder of a bucket that pathwaysutils would refuse."""
    allowed = [one.strip() for one in os.environ.get(_BUCKETS, "").split(",") if one.strip()]
    if allowed and not any(log_dir.startswith(bucket) for bucket in allowed):
        raise ValueError(
            f"log_dir is {log_dir!r}, not in a bucket of {_BUCKETS}: {', '.join(allowed)}"
        )


def _in_a_session(options: Any) -> Any:
    """Returns a copy of options, with the name of the session that all processes share."""
    profiler: Any = importlib.import_module("jax.profiler")
    made = profiler.ProfileOptions()
    for name in () if options is None else dir(options):
        value = getattr(options, name)
        if not name.startswith("_") and not callable(value):
            setattr(made, name, value)
    if not made.session_id:
        made.session_id = datetime.datetime.now().astimezone().strftime(_TIME)
    return made


def _is_upstreams() -> bool:
    """Whether pathwaysutils, which then called JAX's function, has made the request."""
    upstream: Any = sys.modules.get("pathwaysutils.profiling")
    state = getattr(upstream, "_profile_state", None)
    return getattr(state, "executable", None) is not None


def _program(client: Any, text: str, *, has_result: bool) -> Callable[[], None]:
    """Compiles a plug-in program; the result runs it, and waits for it."""
    jax: Any = importlib.import_module("jax")
    programs: Any = importlib.import_module("jax.extend.ifrt_programs").ifrt_programs
    pxla: Any = importlib.import_module("jax.interpreters.pxla")
    made = client.compile_ifrt_program(
        programs.make_plugin_program(text), programs.make_plugin_compile_options()
    )

    def run() -> None:
        results = made.execute_sharded((), with_tokens=True)
        avals: list[Any] = []
        shardings: list[Any] = []
        if has_result:
            avals = [jax.core.ShapedArray((1,), jax.numpy.object_)]
            shardings = [jax.sharding.SingleDeviceSharding(client.local_devices()[0])]
        results.consume_with_handlers(
            pxla.global_avals_to_results_handler(avals, shardings, True).handlers
        )
        results.consume_token().block_until_ready()

    return run
