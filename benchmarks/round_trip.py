#!/usr/bin/env python3
"""Prints round-trip times to a host in milliseconds: round_trip.py ADDRESS.

Its kernel answers a call to a port at which nobody listens, as it answers a ping. Whoever waits for it here never
sleeps, so the time is the network's alone.
"""

import select
import socket
import sys
import time

CALLS = 25
PAUSE = 0.02  # seconds
PORT = 9  # discard: nobody listens
LIMIT = 5.0  # seconds


def round_trip(address):
    with socket.socket() as caller:
        caller.setblocking(False)
        answered = select.poll()
        answered.register(caller, select.POLLOUT)
        began = time.perf_counter()
        caller.connect_ex((address, PORT))
        while not answered.poll(0):
            if time.perf_counter() - began > LIMIT:
                raise TimeoutError(f"{address} does not answer")
        return time.perf_counter() - began


if __name__ == "__main__":
    for _ in range(CALLS):
        print(round_trip(sys.argv[1]) * 1e3)
        time.sleep(PAUSE)
