"""The gRPC server: methods, error responses and limits (spec: remoting.md §7).

The server runs in the same event loop as the other ports.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core writes to stderr by itself

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.grpc import consuming, producing, routes
from rmqctl.ext.serve.grpc.calls import Caller, Endpoint, judged
from rmqctl.ext.serve.grpc.front import MAX_FRAME, Front, Gate, GrpcState
from rmqctl.ext.serve.grpc.protocol import MESSAGES, SERVICE, Code, Refused, response, status
from rmqctl.ext.serve.grpc.sessions import Session
from rmqctl.ext.serve.limits import Quota
from rmqctl.ext.serve.remoting.codes import Failed
from rmqctl.parse_values import Address

_MAX_REQUEST = 5 << 20
"""Maximum size of a request in bytes: a body of the maximum size, and properties."""
_MAX_HEADER = 8 << 10
"""Maximum bytes of a call's metadata; each field counts as its text plus 32 bytes."""
_READ_S = 20.0
"""Maximum time in seconds for a request to arrive completely."""
_IDLE_MS = 120_000
_END_S = 2.0
"""Maximum seconds for sending pending responses at shutdown."""
_CALLS = 4
"""Maximum number of concurrent calls per connection."""
_STREAMS = 100
"""Maximum number of concurrent calls of one connection; clients delay further calls themselves."""
_STREAMS_OF_CLIENTS = 8
"""Maximum number of clients that may share one connection."""
_KEEPALIVE_MS, _KEEPALIVE_WAIT_MS = 30_000, 20_000
_TAKEN_S = 120.0
"""Seconds after which a client that has not read a message is disconnected."""
_MAX_ID = 1024
_FOR_EVER = 1e9
_MAX_UNSENT = 64
_IDENTITY_ONLY = 1
# Errors of calls are answered and reported by this module; calls cut off at the end are normal.
logging.getLogger("grpc").setLevel(logging.CRITICAL)
Method = Callable[[Endpoint, Caller, Any], Awaitable[Any]]


class Proxy:
    """The gRPC service on one address."""

    def __init__(self, brokers: Sequence[Broker], listen: Address, connections: int,
                 part: float = 1.0) -> None:
        self._endpoint = Endpoint(brokers, listen, part)
        self._connections = connections
        self._clients = Quota(connections, part)
        """The limit on client streams."""
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._ends = False
        self._streams: Counter[str] = Counter()
        """Number of client streams by connection."""
        self._front: Front | None = None
        self._server: Any = None

    @property
    def address(self) -> Address:
        """The address on which the server listens."""
        return self._endpoint.address

    @property
    def in_use(self) -> bool:
        """True if any client is connected."""
        return bool(self._calls) or bool(self._endpoint.sessions.by_client)

    async def start(self, server: GrpcState, address: Address, bound: socket.socket) -> None:
        """Start the service on a bound socket. Raises: StoreIOError."""
        self._endpoint.address = address
        self._front = front = Front(server, self._connections, self._clients.part)
        self._server = aio.server(
            handlers=[_Handlers(front.gate, self._handlers())],
            maximum_concurrent_rpcs=self._connections * _CALLS,
            options=[
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.server.max_pending_requests", 5000),
                ("grpc.server.max_pending_requests_hard_limit", 10000),
                ("grpc.max_receive_message_length", _MAX_REQUEST),
                ("grpc.max_metadata_size", _MAX_HEADER // 2),
                ("grpc.absolute_max_metadata_size", _MAX_HEADER),
                ("grpc.http2.max_frame_size", MAX_FRAME), ("grpc.http2.bdp_probe", 0),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_WAIT_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY)])
        try:
            self._server.add_insecure_port(f"unix:{front.core}")
        except RuntimeError as error:
            raise StoreIOError(f"cannot listen on {front.core}: {error}") from None
        await self._server.start()
        await front.listen(bound)

    async def stop(self) -> None:
        """End all calls immediately."""
        if self._server is not None and self._front is not None:
            self._ends = True
            for task in list(self._calls):
                if task is not None:
                    task.cancel()
            await self._server.stop(_END_S)
            if self._calls:  # the core has ended them, but they do not know it yet
                await asyncio.wait([task for task in self._calls if task is not None])
            self._front.close()

    def expire(self) -> None:
        """End the sessions of clients without a recent heartbeat."""
        self._endpoint.sessions.expire()

    def _handlers(self) -> Any:
        def unary(name: str, method: Method) -> Any:
            return grpc.stream_unary_rpc_method_handler(  # so that it is read when we say so
                self._answering(name, method), MESSAGES[f"{name}Request"].FromString,
                MESSAGES[f"{name}Response"].SerializeToString)

        handlers = {name: unary(name, method) for name, method in _METHODS.items()}
        handlers["ReceiveMessage"] = grpc.stream_stream_rpc_method_handler(
            self._receive, MESSAGES["ReceiveMessageRequest"].FromString,
            MESSAGES["ReceiveMessageResponse"].SerializeToString)
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry, MESSAGES["TelemetryCommand"].FromString,
            MESSAGES["TelemetryCommand"].SerializeToString)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    # -- calls --------------------------------------------------------------------------------

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Register a call while it runs. At shutdown, the call is cancelled, but ends without an
        exception.

        gRPC would print a traceback for a call that ends with an exception.
        """
        task = asyncio.current_task()
        self._calls.add(task)
        if self._ends and task is not None:
            task.cancel()  # it came when others were cut off
        try:
            yield
        except asyncio.CancelledError:
            if not self._ends:
                raise
        finally:
            self._calls.discard(task)

    async def _read(self, context: Any) -> tuple[Caller, Any]:
        """Return the calling client and its request. Raises: Refused."""
        caller = self._caller(context)
        async with _in_time(_READ_S, "no request arrived in time"):
            request = await context.read()
        if request is aio.EOF:
            raise Refused(Code.BAD_REQUEST, "the request is missing")
        await asyncio.sleep(self._endpoint.brokers[0].cluster.faults.slow)
        return caller, request

    def _caller(self, context: Any) -> Caller:
        """Return the calling client.
        Raises: Refused if it sends no client id, or is not authorized.
        """
        metadata = {name: text for name, text in context.invocation_metadata() or ()
                    if isinstance(text, str)}
        client_id = metadata.get("x-mq-client-id", "")
        if not client_id.strip() or len(client_id) > _MAX_ID:
            raise Refused(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
        try:
            self._endpoint.brokers[0].cluster.access.check_call(
                metadata.get("authorization", ""), metadata.get("x-mq-date-time", ""))
        except Failed as refused:
            raise Refused(Code.UNAUTHORIZED, refused.remark) from None
        assert self._front is not None
        remaining = context.time_remaining()
        return Caller(client_id, self._front.peer(context.peer()),
                      metadata.get("x-mq-language", "OTHER")[:32],
                      _FOR_EVER if remaining is None else remaining)

    def _answering(self, name: str, method: Method) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(_requests: Any, context: Any) -> Any:
            code, text = Code.INTERNAL_SERVER_ERROR, "the server is shutting down"
            with self._counted():
                try:
                    return await method(self._endpoint, *await self._read(context))
                except Exception as error:  # noqa: BLE001 - every call is answered
                    code, text = self._judged(name, error)
            return response(name, code, text)

        return answer

    def _judged(self, name: str, error: Exception) -> tuple[Code, str]:
        """Return the code and the text with which an error is reported to the client."""
        if isinstance(error, Refused | Failed):
            return judged(error)
        if isinstance(error, DecodeError):
            return Code.BAD_REQUEST, "the request cannot be decoded"
        if not isinstance(error, RmqctlError | aio.InternalError):  # the latter: the client is gone
            self._endpoint.brokers[0].failed(name, error)
        return Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"

    async def _receive(self, _requests: Any, context: Any) -> None:
        with self._counted():
            await self._received(context)

    async def _received(self, context: Any) -> None:
        begun = False
        try:
            async with aclosing(consuming.receive(
                    self._endpoint, *await self._read(context))) as answers:
                async for answer in answers:
                    async with asyncio.timeout(_TAKEN_S):
                        await context.write(answer)
                    begun = True
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read its "
                                "messages")
        except Exception as error:
            if isinstance(error, aio.AbortError):
                raise
            code, text = self._judged("ReceiveMessage", error)
            if not begun:
                await context.write(MESSAGES["ReceiveMessageResponse"](status=status(code, text)))

    # -- the stream of a client ---------------------------------------------------------------

    async def _telemetry(self, _requests: Any, context: Any) -> None:
        with self._counted():
            await self._serve_stream(context)

    async def _serve_stream(self, context: Any) -> None:
        """Serve a client's Telemetry stream: answer the client's settings, and send commands to the
        client.
        """
        peer = context.peer()
        if self._streams[peer] >= _STREAMS_OF_CLIENTS:
            await context.write(MESSAGES["TelemetryCommand"](status=status(
                Code.TOO_MANY_REQUESTS, "too many clients on this connection")))
            return
        self._streams[peer] += 1
        try:
            await self._serve_client(context)
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _serve_client(self, context: Any) -> None:
        # Identify the client, and count its stream.
        commands: asyncio.Queue[Any] = asyncio.Queue(_MAX_UNSENT)
        sender = asyncio.ensure_future(_send_all(commands, context))
        session: Session | None = None
        host = ""
        try:
            caller = self._caller(context)
            if not self._clients.has_room(caller.host):
                raise Refused(Code.TOO_MANY_REQUESTS, "too many clients")
            host = caller.host
            self._clients.take(host)
            # Answer each of its settings before the next ones are read.
            while True:
                async with _in_time(_READ_S if session is None else None, "no settings arrived in "
                                    "time"):
                    command = await context.read()
                if command is aio.EOF:
                    break
                settings = command.settings if command.HasField("settings") else None
                command = None  # not kept while the next one comes
                if settings is None:
                    continue
                settled = await self._endpoint.sessions.settle(
                    caller.client_id, caller.peer, caller.language, settings)
                settings = None
                if settled is not session:
                    session = settled
                    session.streams += 1
                for link in session.links:
                    link.commands = commands
                async with _in_time(_TAKEN_S, "the client does not read its settings"):
                    await commands.put(MESSAGES["TelemetryCommand"](
                        status=status(Code.OK), settings=session.settings))
                    await commands.join()
        except Exception as error:  # noqa: BLE001 - every call is answered
            code, text = self._judged("Telemetry", error)
            with suppress(asyncio.QueueFull, TimeoutError):
                commands.put_nowait(MESSAGES["TelemetryCommand"](status=status(code, text)))
                await asyncio.wait_for(commands.join(), 1)
        finally:
            # The client is gone, or was refused.
            if host:
                self._clients.leave(host)
            sender.cancel()
            if session is not None:
                self._endpoint.sessions.closed(session, commands)


@asynccontextmanager
async def _in_time(seconds: float | None, problem: str) -> AsyncIterator[None]:
    """Raise Refused with the text ``problem`` if the block takes longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Refused(Code.BAD_REQUEST, problem) from None


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of the service. They notify the gate of each call that starts."""

    def __init__(self, gate: Gate, handlers: grpc.GenericRpcHandler) -> None:
        self._gate, self._handlers = gate, handlers

    def service(self, handler_call_details: Any) -> Any:
        self._gate.begun()
        return self._handlers.service(handler_call_details)


async def _send_all(commands: asyncio.Queue[Any], context: Any) -> None:
    while True:
        command = await commands.get()
        try:
            await context.write(command)
        except Exception:  # noqa: BLE001 - of any kind: the stream is gone, and its call ends, too
            return
        finally:
            commands.task_done()


async def _heartbeat(endpoint: Endpoint, caller: Caller, _request: Any) -> Any:
    """Keep a client's session alive. The client must already have sent its settings."""
    session = endpoint.sessions.by_client.get(caller.client_id)
    if session is None:
        raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "the client has not sent its settings")
    await endpoint.sessions.beat(session)
    return response("Heartbeat")


async def _terminate(endpoint: Endpoint, caller: Caller, _request: Any) -> Any:
    """End the session of a client."""
    endpoint.sessions.leave(caller.client_id)
    return response("NotifyClientTermination")


_METHODS: dict[str, Method] = {
    "QueryRoute": routes.query_route,
    "QueryAssignment": routes.query_assignment,
    "Heartbeat": _heartbeat,
    "NotifyClientTermination": _terminate,
    "SendMessage": producing.send,
    "EndTransaction": producing.end_transaction,
    "RecallMessage": producing.recall,
    "SyncLiteSubscription": producing.sync_lite,
    "AckMessage": consuming.ack,
    "ChangeInvisibleDuration": consuming.change_invisible,
    "ForwardMessageToDeadLetterQueue": consuming.forward_to_dead_letters,
}
