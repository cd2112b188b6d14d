"""The program of a hotswap's pods on the testbed: processes that depend on each other, without JAX.

As with JAX, whose first process serves the others: the first one ends when all others have.
"""

from __future__ import annotations

__all__ = ["COMMAND", "IMAGE"]

IMAGE = "python:3.12"
_PROGRAM = """
import os, signal, socket, sys, threading, time
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
leader = (os.environ["SLICE_LEADER"], 8431)
crew = []

def gather(server):
    while True:
        crew.append(server.accept()[0])

if os.environ["JOB_COMPLETION_INDEX"] == "0":
    server = socket.create_server(leader)
    threading.Thread(target=gather, args=(server,), daemon=True).start()
    told.wait()
    for one in crew:
        one.settimeout(None)
        while one.recv(1):
            pass
    time.sleep(0.3)  # their ends are told of before this one
else:
    while not told.is_set():
        try:
            crew.append(socket.create_connection(leader, timeout=1))
        except OSError:
            told.wait(0.05)
        else:
            told.wait()
os._exit(143)
"""
COMMAND = ("python", "-S", "-c", _PROGRAM)
