"""The servers, loads, rounds and durations of a run.

`make bench` measures ucall, the floor and the peers that the README quotes, in at most 30 minutes;
`make bench-peers` everything else. `ROWS=…` chooses sections. The headline takes most of the time,
because its differences are small; servers that are many times slower need fewer rounds.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from bench.harness.shapes import CLIENTS
from bench.suite import servers
from bench.suite.drivers import echo_request
from bench.suite.rounds import Group
from bench.suite.servers import Load, Server

ONE = Load("c1", "1 client", 1, CLIENTS)
MANY = Load("c32", "32 clients", 32, CLIENTS)
MANY_CONNECTIONS = Load("c256", "256 clients", 256, CLIENTS)
#: The best case of a parser: all requests are equal, byte for byte.
CONSTANT = Load("constant", "32 clients, one request", 32)
SINGLE = Load("single", "1 client, one request", 1)
#: The peers of the README's table.
QUOTED = ("fastapi-def", "grpc-asyncio", "grpc-cpp", "h2o", "actix")
PEERS_A_GROUP = 5
RATES = (2_000, 20_000)
#: Servers that cannot reach the higher rate run only at the lower one.
FAST = (
    *("granian", "robyn", "socketify", "protocol"),
    *("h2o", "uwebsockets", "actix", "jsonrpsee", "ntex"),
)
#: Percentages of the capacity.
SHARES = (10, 50, 80)
#: Names of loads, and the connections of the second one.
BESIDE, BESIDE_IDLE, IDLE_CONNECTIONS = "beside", "beside-idle", 1_000
BATCHES = (10, 100, 1000)
ECHO_TEXT = "x" * 64

Groups = list[Group]


def with_floors(protocol: str) -> tuple[Server, ...]:
    """The servers in the order in which they run."""
    epoll, uring = servers.floors(protocol)
    ours = servers.ours(protocol)
    of_posix = [server for server in ours if "posix" in server.name]
    of_uring = [server for server in ours if "uring" in server.name]
    return (epoll, *of_posix, uring, *of_uring)


def headline() -> Groups:
    return [Group("headline", with_floors("http"), (MANY, CONSTANT), 15, 1)]


def same() -> Groups:
    """One program on both sides, to see how far apart equal servers come out."""
    server = next(server for server in servers.ours("http") if server.name == "ours-c-posix")
    return [Group("same", (servers.twin(server), server), (MANY,), 60, 1)]


def clients() -> Groups:
    http, raw = with_floors("http"), with_floors("raw")
    return [
        Group("calls", http, (ONE,), 15, 1),
        Group("calls", http, (MANY_CONNECTIONS,), 5, 1),
        Group("calls", raw, (ONE,), 7, 1),
        Group("calls", raw, (MANY,), 15, 1),
        Group("calls", raw, (MANY_CONNECTIONS,), 3, 1),
    ]


def quoted() -> Groups:
    return [*beside_ours(lambda server: server.name in QUOTED, (ONE, MANY))]


def peers() -> Groups:
    loads = (ONE, MANY, MANY_CONNECTIONS)
    return [*beside_ours(lambda server: server.name not in QUOTED, loads)]


def beside_ours(is_chosen: Callable[[Server], bool], loads: tuple[Load, ...]) -> Iterator[Group]:
    """Groups of servers with a floor and two of ucall's, so that they run close in time."""
    floor = servers.floors("http")[0]
    ours = {server.name: server for server in servers.ours("http")}
    chosen = [server for server in servers.peers() if is_chosen(server)]
    by_python = [server for server in chosen if server.family == "python"]
    native = [server for server in chosen if server.family == "native"]
    python_sides = (ours["ours-python-posix"], ours["ours-python-uring"])
    c_sides = (ours["ours-c-posix"], ours["ours-c-uring"])
    chunks = [by_python[at : at + PEERS_A_GROUP] for at in range(0, len(by_python), PEERS_A_GROUP)]
    for sides, chunk in [(c_sides, native), *((python_sides, chunk) for chunk in chunks)]:
        yield Group("calls", (floor, *sides, *chunk), loads, 7, 1)


def multiplexed() -> Groups:
    """As their clients use them: many calls at a time on one connection."""
    formats = servers.OTHER_FORMATS
    chosen = tuple(server for server in servers.peers() if server.protocol in formats)
    load = Load("streams-32", "1 connection, 32 streams", 1, depth=32)
    return [Group("multiplexed", chosen, (load,), 3, 1)]


def open_loop() -> Groups:
    formats = servers.OTHER_FORMATS
    everyone = [server for server in servers.peers() if server.protocol not in formats]
    fast = [server for server in everyone if server.name in FAST]
    slow_load, fast_load = (
        Load(f"rate-{rate}", f"{rate:,} calls a second", 32, CLIENTS, rate=rate) for rate in RATES
    )
    our_servers = with_floors("http")
    return [
        Group("open-loop", (*our_servers, *everyone), (slow_load,), 2, 1),
        Group("open-loop", (*our_servers, *fast), (fast_load,), 2, 1),
    ]


def pipelined() -> Groups:
    load = Load("depth-16", "32 clients, 16 deep", 32, depth=16)
    return [Group("pipelined", with_floors(how), (load,), 5, 1) for how in ("http", "raw")]


def batches() -> Groups:
    return [
        Group(
            "batches",
            with_floors("http"),
            (Load(f"batch-{size}", f"32 clients, batches of {size:,}", 32, batch=size),),
            5 if size == 100 else 3,
            1,
        )
        for size in BATCHES
    ]


def reconnect() -> Groups:
    load = Load("reconnect", "32 clients, a connection a call", 32, reconnect=True)
    return [Group("reconnect", with_floors("http"), (load,), 3, 1)]


def tools() -> Groups:
    """The same servers under wrk and under `bench/load`."""
    chosen = tuple(server for server in with_floors("http") if "-c-" not in server.name)
    loads = tuple(replace(CONSTANT, name=f"tool-{tool}", tool=tool) for tool in ("wrk", "own"))
    return [Group("tools", chosen, loads, 3, 1)]


def websocket() -> Groups:
    """`sum` over WebSocket and over HTTP under one load generator, and echoes of a short text."""
    calls = [*servers.ours("http"), *servers.ours("websocket"), *servers.websocket_peers("sum")]
    echo = [*servers.echo_servers(), *servers.websocket_peers("echo")]
    return [
        Group("websocket", tuple(chosen), websocket_loads(task), 3, 1)
        for task, chosen in (("sum", calls), ("echo", echo))
    ]


def websocket_loads(task: str) -> tuple[Load, ...]:
    loads = tuple(
        replace(
            load,
            name=f"websocket-{task}-{load.connections}",
            label=f"{task}, {load.label}",
            clients=(),
        )
        for load in (ONE, MANY)
    )
    if task == "sum":
        return loads
    body = echo_request(ECHO_TEXT)
    return tuple(replace(load, body=body, expected=ECHO_TEXT) for load in loads)


def at_shares(load: Load, *shares: int) -> tuple[Load, ...]:
    """Each group finds the capacity anew, so it has one round: the machine changes its mode."""
    return tuple(
        replace(load, name=f"share-{it}", label=f"{load.label}, {it}% of the capacity", share=it)
        for it in shares
    )


def tails() -> Groups:
    """Tail latency at shares of the capacity, beside the floor at the same rate."""
    floors = {floor.name: floor for floor in servers.floors("http")}
    pairs = [(floors[servers.floors_of(it.name)[0]], it) for it in servers.ours("http")]
    return [Group("tails", pair, at_shares(MANY, *SHARES), 1, 1) for pair in pairs * 8]


def beside() -> Groups:
    """Tail latency of Python servers at half of their capacity while something else goes on: a
    thread that computes, garbage collections, idle connections."""
    groups, [half] = [], at_shares(MANY, 50)
    for same in servers.python_beside() * 5:
        groups.append(Group("beside", tuple(same), (replace(half, name=BESIDE),), 1, 1))
        idle = replace(half, name=BESIDE_IDLE, idle=IDLE_CONNECTIONS)
        groups.append(Group("beside", tuple(same[:1]), (idle,), 1, 1))
    return groups


def tls() -> Groups:
    """The cost and the tails of servers over TLS, beside the floor of TLS."""
    # Chromium names an origin, which over TLS is another one, and so rejected.
    clients = tuple(it for it in CLIENTS if it != "chromium")
    load = replace(MANY, name="c32-tls", clients=clients)
    floor, *ours = servers.over_tls()
    tails = [Group("tls", (floor, it), at_shares(load, 50), 1, 1) for it in ours * 7]
    return [Group("tls", (floor, *ours), (load,), 7, 1), *tails]


ALL = (
    *(headline, same, clients, quoted, peers, multiplexed, open_loop, pipelined, batches),
    *(reconnect, tools, websocket, tails, beside, tls),
)
SECTIONS: dict[str, Callable[[], Groups]] = {it.__name__.replace("_", "-"): it for it in ALL}


def groups_of(section: str, brief: bool) -> Groups:
    """The groups of a section. With `brief` each runs once, under one load, to check that it
    works."""
    groups = SECTIONS[section]()
    if not brief:
        return groups
    return [brief_form(it) for at, it in enumerate(groups) if it not in groups[:at]]


def brief_form(group: Group) -> Group:
    middle = len(group.loads) // 2
    loads = group.loads[middle : middle + 1]
    return replace(group, loads=loads, rounds=1, seconds=1)
