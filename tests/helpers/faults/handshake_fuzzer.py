"""Strangers at an endpoint: bad greetings, bad answers to greetings."""

import random
import socket
import threading
from typing import Any

from helpers.faults.frame_fuzzer import Tally, anything, mutated, wire
from helpers.worlds.communicators import outcome

from pcp.errors import PcpError
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator import greeting
from pcp.runtime.group.group_endpoint import GroupEndpoint
from pcp.runtime.group.membership import Past
from pcp.runtime.group.mesh_formation import members_digest
from pcp.runtime.transport.address import parse_address
from pcp.runtime.transport.frame import Frame, Kind, json_payload


def hello(**values: Any) -> Frame:
    """A greeting."""
    return Frame(Kind.HELLO, payload=json_payload(values))


def control(**facts: Any) -> Frame:
    """A member's message to its coordinator."""
    return Frame(Kind.CONTROL, payload=json_payload(facts))


GREETINGS = [
    [hello(purpose="group", epoch=1, rank=1, members="")],
    [hello(purpose="group", epoch=900, rank=1, members=""), Frame(Kind.OPEN)],
    [hello(purpose="snapshot")],
    [Frame(Kind.AUTH, payload=bytes(32)), Frame(Kind.PROOF, payload=bytes(32))],
]
MEMBERS = [
    [
        hello(**greeting("stranger", "127.0.0.1:1", Past())),
        Frame(Kind.PING),
        control(what="vote", broken=False),
        control(what="formed", epoch=1),
        control(what="failed", epoch=1, lost=["a"]),
        control(what="ask", epoch=1, key=[0, 0]),
        control(what="answer", epoch=1, key=[0, 0], done=True),
        control(what="unvote"),
        Frame(Kind.BYE),
    ],
    [
        hello(
            **greeting("other", "127.0.0.1:1", Past(3, 4, {"other": "x"}, prepared=5))
        ),
        control(what="unvote"),
        Frame(Kind.BYE),
    ],
]


def knock(
    endpoint: Endpoint | GroupEndpoint,
    rng: random.Random,
    frames: int,
    tally: Tally,
    scripts: list[list[Frame]],
) -> None:
    """So many bad frames from strangers, a few in each connection."""
    until = tally.frames + frames
    while tally.frames < until:
        script = rng.choice(scripts)
        at = rng.randrange(len(script))
        said = [wire(rng, frame, 0) for frame in script[:at]]
        for _ in range(rng.choice((1, 2, 3))):
            frame = rng.choice(script[at:])
            frame = mutated(rng, frame) if rng.random() < 0.8 else anything(rng)
            said.append(wire(rng, frame, 0))
            tally.frames += 1
        said += [wire(rng, frame, 0) for frame in script[at:]]
        with socket.create_connection(parse_address(endpoint.listening), 10) as sock:
            try:
                sock.sendall(b"".join(said))
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has had enough of us
        endpoint.loop.ask(lambda: None, 20)  # its turn, so that none are turned away
        assert not tally.errors, f"{script[0]}: {tally.errors[0]}"


def form_with_liars(
    endpoint: Endpoint, rng: random.Random, frames: int, tally: Tally
) -> None:
    """Groups of three that never come to be: both others are bare sockets.

    Rank 0 is dialled and answers with nonsense, rank 2 dials and says some.
    """
    until, epoch = tally.frames + frames, 1
    with socket.create_server(("127.0.0.1", 0)) as rogue:
        rogue.settimeout(10)
        port = rogue.getsockname()[1]
        while tally.frames < until:
            epoch += 1
            members = [f"127.0.0.1:{port}", endpoint.address, "127.0.0.1:2"]
            _one_formation(endpoint, rng, rogue, epoch, members, tally)
            assert not tally.errors, tally.errors[0]


def _one_formation(
    endpoint: Endpoint,
    rng: random.Random,
    rogue: socket.socket,
    epoch: int,
    members: list[str],
    tally: Tally,
) -> None:
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(
            outcome(lambda: endpoint.form(epoch, members, 1, 20))
        )
    )
    thread.start()
    address = parse_address(endpoint.listening)
    dialled = rogue.accept()[0]
    with dialled, socket.create_connection(address, 10) as dialling:
        digest = members_digest(members)
        greets = hello(purpose="group", epoch=epoch, rank=2, members=digest)
        for sock, script, spoken in (
            (dialled, [Frame(Kind.WELCOME), Frame(Kind.OPEN)], epoch),
            (dialling, [greets, Frame(Kind.OPEN)], 0),
        ):
            said = []
            if rng.random() < 0.5:
                said = [wire(rng, script[0], 0)]
            for _ in range(rng.choice((1, 2, 3))):
                frame = mutated(rng, rng.choice(script))
                said.append(wire(rng, frame, rng.choice((0, spoken))))
                tally.frames += 1
            try:
                sock.sendall(b"".join(said))
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has had enough of us
    thread.join(30)
    assert not thread.is_alive(), "a formation that never ends"
    assert isinstance(results[0], PcpError), results
