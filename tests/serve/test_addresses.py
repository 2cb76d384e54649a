"""Where clients find a broker: routes, the port of old clients."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing

import pytest

from rmqctl.ext.serve.remoting.client import Client
from rmqctl.parse_values import Address
from tests.conftest import GoldenFolder
from tests.serve.running import serving


def free_port() -> int:
    """One that is free, and so is the second one below it."""
    while True:
        with closing(socket.socket()) as connection, closing(socket.socket()) as other:
            connection.bind(("127.0.0.1", 0))
            port: int = connection.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port - 2))
            except OSError:
                continue
            return port


@pytest.mark.parametrize(("host", "ways"), [("0.0.0.0", ("127.0.0.1", "127.0.0.2")),
                                           ("::", ("::1",))])
def test_a_client_is_sent_to_the_address_it_came_to(golden: GoldenFolder, host: str,
                                                    ways: tuple[str, ...]) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    root = golden("5.3.3/basic") / "store"
    with serving(root, listen=Address(host, 0)) as served:
        port = served.address.port
        for there in ways:
            with Client(Address(there, port)) as client:
                table = client.ask("GET_BROKER_CLUSTER_INFO").json()["brokerAddrTable"]
                assert table["broker-a"]["brokerAddrs"] == {"0": str(Address(there, port))}


def test_old_clients_are_answered_two_ports_below(golden: GoldenFolder) -> None:
    root = str(golden("5.3.3/basic") / "store")
    port = free_port()
    for taken in (False, True):
        with closing(socket.socket()) as other:
            if taken:
                other.bind(("127.0.0.1", port - 2))  # who has it keeps it
            with subprocess.Popen([sys.executable, "-m", "rmqctl", "serve", root, "--listen",
                                   f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True
                                  ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == f"ready 127.0.0.1:{port}\n"
                with Client(Address("127.0.0.1", port - 2 * (not taken))) as client:
                    assert client.ask("GET_NAMESRV_CONFIG").code == 0
                process.terminate()
            assert process.returncode == 0
