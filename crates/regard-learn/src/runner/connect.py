"""The connection of a harness with the judge that started it; stands before both harnesses."""

import os
import socket
import time


def connect(address):
    kind, place = address.split(":", 1)
    if kind == "unix":
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(place)
        return link
    port, token = place.split(":")
    link = socket.create_connection(("127.0.0.1", int(port)))
    link.sendall(token.encode())
    return link


def end_with(parent, sleep=time.sleep, getppid=os.getppid, end=os._exit):
    """Ends this process when the judge is gone, also within an endless loop."""
    while getppid() == parent:
        sleep(0.2)
    end(0)


