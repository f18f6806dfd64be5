"""The parts of both clients. Internal: use `ucall.client` or `ucall.aio`.

| part | synchronous | asyncio | for both, without I/O |
|---|---|---|---|
| the client | `ucall.client` | `ucall.aio` | `base`, `batch`, `options`, `response` |
| several servers | `balanced`, `hedge` | `aio_balanced` | `failover`, `balancer`, `resend` |
| one server | `pool`, `sockets` | `aio_pool` | `address`, `happy_eyeballs` |
| a connection with one call at a time | `socket_connection` | `aio_connection` | |
| a connection that calls share | `channel`, `link` | `aio_pool`, `aio_connection` | `inbox` |
| streams and subscriptions | `streams` | `aio_streams` | |
| UDP | `udp` | `udp`, `aio_udp_endpoint` | `datagrams` |

`failover` is written as coroutines. Those of a synchronous client run on the thread of the call, by
`blocking.run`, without an event loop.

A synchronous call over a plain socket uses `ucall._core.ClientConnection`, which is in Rust;
`socket_connection` has the same methods for TLS and for observers of the bytes. All other
connections parse with `ucall._core.ReplyReader`.
"""
