"""Params and replies, with a program whose params choose the getter or the reply."""

import json
import signal
import time
import urllib.request

import pytest

import harness
from harness import Client, serving

CALLS = harness.PROGRAMS / "calls.c"


@pytest.fixture
def client(built, engine):
    with serving([built(CALLS), engine]) as server, Client(server.port) as client:
        client.server = server
        yield client


def named(client: Client, how: str, text: str, name: str = "x"):
    """The value that the program reads as `name` from params with the text `{how, name, TEXT}`."""
    head = f'"how":{json.dumps(how)},"name":{json.dumps(name)}'
    return client.call("named", text="{" + head + "," + text + "}")


def absent(client: Client, how: str, text: str, name: str = "x") -> bool:
    head = f'"how":{json.dumps(how)},"name":{json.dumps(name)}'
    error = client.error_of("named", text="{" + head + "," + text + "}")
    return error == {"code": 404, "message": "absent"}


def test_each_type_is_read_as_itself(client):
    assert named(client, "bool", '"x":true') is True
    assert named(client, "bool", '"x":false') is False
    for number in (0, -1, 2**63 - 1, -(2**63)):
        assert named(client, "i64", f'"x":{number}') == number
    assert named(client, "f64", '"x":2.5e-3') == 0.0025
    assert named(client, "f64", '"x":7') == 7
    assert named(client, "str", '"x":"plain"') == "plain"
    assert named(client, "str", '"x":""') == ""
    for text in ("null", '{"a":[1, 2]}', '"a\\n"', "1e999", "[]"):
        assert client.error_of("named", text="{}")["code"] == -32602
        if text != "1e999":
            assert named(client, "json", f'"x": {text} ') == json.loads(text)


def test_a_value_of_another_type_is_absent(client):
    values = {
        "bool": ["0", '"true"', "null", "[true]"],
        "i64": ["1.0", "1e2", str(2**63), str(-(2**63) - 1), "true", '"1"', "null", "{}"],
        "f64": ["1e999", "-1e999", '"1"', "true", "null", "[1]"],
        "str": ["1", "null", "true", '["a"]', '{"a":"b"}'],
    }
    for how, wrong in values.items():
        for value in wrong:
            assert absent(client, how, f'"x":{value}'), (how, value)
    for how in ("bool", "i64", "f64", "str", "json"):
        assert absent(client, how, '"y":1')
        assert absent(client, how, '"X":1,"xx":1,"":1')


def test_escaped_and_foreign_text(client):
    assert named(client, "str", r'"x":"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00"') == (
        '"\\/\b\f\n\r\tAé😀'
    )
    assert named(client, "str", '"x":"日本語 – ünï"') == "日本語 – ünï"
    assert named(client, "str", r'"x":"a\u0000b"') == "a\0b"
    assert named(client, "str", r'"\u0078":"escaped name"') == "escaped name"
    assert named(client, "str", '"größe/😀":"found"', name="größe/😀") == "found"
    assert named(client, "i64", r'"a\"b":5', name='a"b') == 5


def test_empty_text_can_be_passed_back(client):
    """Text of the library has no NUL at its end, and a length of 0 means that there is one."""
    secret = '"secret":"of this request"'
    assert named(client, "str", f'"x":"",{secret}') == ""
    assert named(client, "str", f'"":"found",{secret}', name="") == "found"
    assert client.error_of("content", {"json": "", "secret": 1})["code"] == -32603


def test_names_that_hold_nuls(client):
    text = r'"a\u0000b":1,"a":2,"a\u0000":3'
    assert named(client, "i64", text, "a\0b") == 1
    assert named(client, "i64", text, "/a\0b") == 1
    assert named(client, "i64", text, "a\0") == 3
    assert absent(client, "i64", text, "\0")


def test_places_and_names_may_be_null(client):
    params = {"truth": True, "integer": 5, "number": 2.5, "text": "é\n"}
    assert client.call("nulls", params) is True


def test_the_last_duplicate_member_counts(client):
    assert named(client, "i64", r'"x":1,"x":2,"\u0078":3') == 3
    assert absent(client, "i64", '"x":1,"x":"2"')


def test_names_that_are_pointers(client):
    text = '"a":{"b":[10,{"c/d":"e","m~n":[true]}],"":5},"/odd":6'
    assert named(client, "i64", text, "/a/b/0") == 10
    assert named(client, "str", text, "/a/b/1/c~1d") == "e"
    assert named(client, "bool", text, "/a/b/1/m~0n/0") is True
    assert named(client, "i64", text, "/a/") == 5
    assert named(client, "i64", text, "/~1odd") == 6
    for nothing in ("/a/b/2", "/a/b/-", "/a/b/00", "/b", "/a/b/0/0", "/a~2", "/", "//"):
        assert absent(client, "json", text, nothing), nothing


def test_positions(client):
    def at(how, index, *rest):
        return client.call("positional", [how, index, *rest])

    assert at("i64", 2, 7) == 7
    assert at("str", 3, 0, "é") == "é"
    assert at("json", 4, 1, 2, {"a": [None]}) == {"a": [None]}
    assert at("f64", 2, 1) == 1
    assert at("bool", 2, True) is True
    assert at("i64", 1) == 1
    for index in (2, 1000, 2**62, -1):
        assert client.error_of("positional", ["json", index])["code"] == 404
    # Members have no position, and items have no name except a pointer.
    assert client.error_of("positional", {"how": "i64", "index": 0})["code"] == -32602
    assert client.error_of("named", ["i64", "x"])["code"] == -32602


def test_huge_and_nested_params(client, built, engine):
    huge = "é" * 500_000 + "\n" + "x" * 500_000
    assert named(client, "str", f'"x":{json.dumps(huge)}') == huge
    many = ",".join(f'"k{number}":{number}' for number in range(100_000))
    assert named(client, "i64", many, "k99999") == 99_999
    assert client.call("positional", ["i64", 100_001, *range(100_000)]) == 99_999
    deep = "[" * 120 + "1" + "]" * 120
    assert named(client, "i64", f'"x":{deep}', "/x" + "/0" * 120) == 1
    assert named(client, "json", f'"x":{deep}') == json.loads(deep)
    with serving([built(CALLS), engine, "deep"]) as server, Client(server.port) as deeper:
        deep = "[" * 1000 + "1" + "]" * 1000
        assert named(deeper, "i64", f'"x":{deep}', "/x" + "/0" * 1000) == 1
        deep = '{"a":' * 1000 + "1" + "}" * 1000
        assert named(deeper, "i64", f'"x":{deep}', "/x" + "/a" * 1000) == 1
        deep = "[" * 1023 + "]" * 1023
        deeper.submit("named", text=f'{{"x":{deep}}}')
        assert deeper.message()["error"]["code"] == -32700


def test_params_up_to_and_beyond_the_members_the_scan_records(client):
    # With `how` and `name`, or the number, these are the 32 members that the scan records.
    for count in (1, 29, 30, 31, 32, 33, 100):
        text = ",".join(f'"k{number}":{number}' for number in range(count))
        for number in (0, count // 2, count - 1):
            assert named(client, "i64", text, f"k{number}") == number, (count, number)
            assert client.call("positional", ["i64", number + 2, *range(count)]) == number
        assert absent(client, "i64", text, f"k{count}")
        assert named(client, "i64", text + ',"k0":"x","k0":7', "k0") == 7
    # The last params count, and each call has its own.
    twice = '{"how":"i64","name":"x","x":1},"params":{"how":"i64","name":"x","x":2}'
    assert client.call("named", text=twice) == 2


def test_text_stays_in_place_until_the_call_ends(client):
    texts = [f'é\n"{number}"' * (1 + number % 3) for number in range(1000)]
    assert client.call("same", {"texts": texts}) is True
    assert client.call("same", {"texts": ["plain"] * 1000}) is True


def test_a_second_reply_is_ignored_and_logged(client):
    assert [client.call("twice") for _ in range(50)] == [1] * 50
    client.server.stop()
    assert client.server.errors.count('procedure "twice" replied twice') == 1, client.server.errors


def test_a_callback_that_never_replies(client):
    client.notify("never")
    assert client.error_of("never")["code"] == -32603
    assert client.call("twice") == 1
    client.server.stop()
    assert client.server.errors.count('procedure "never" did not reply') == 1


def test_errors(client):
    def error(how):
        return client.error_of("fails", {"how": how})

    assert error("invalid_params") == {"code": -32602, "message": "Invalid params"}
    assert error("out_of_memory") == {"code": -32603, "message": "Out of memory"}
    assert error("unknown") == {"code": -32603, "message": "Internal error"}
    assert error("own") == {"code": -7, "message": 'a "reason"'}
    assert error("silent") == {"code": 7, "message": ""}
    assert error("latin") == {"code": 7, "message": "\N{REPLACEMENT CHARACTER}"}
    for cannot_be_written in ("nan", "bytes", "null"):
        assert error(cannot_be_written)["code"] == -32603


def test_content_is_checked_in_every_build(built):
    broken = ["{", "1 2", "nul", '"\n"', "[1,]", "'a'", "[" * 1025 + "]" * 1025]
    with serving([built(CALLS)]) as server, Client(server.port) as client:
        assert client.call("content", {"json": ' {"a":[1.5]} '}) == {"a": [1.5]}
        for text in broken:
            error = client.error_of("content", {"json": text})
            assert error["code"] == -32603 and "JSON" in error["message"], text


# The reason why each invalid reply is rejected.
ABSURD = {
    "content": "longer than any object in memory",
    "content, half": "longer than any object in memory",
    "content, NULL": "JSON that is NULL",
    "content, NULL, all": "JSON that is NULL",
    "content, bytes": "invalid JSON",
    "content, NUL": "invalid JSON",
    "content, cut": "invalid JSON",
    "content, empty": "invalid JSON",
    "content, none": "invalid JSON",
    "content, blank": "invalid JSON",
    "str": "longer than any object in memory",
    "str, NULL": "a string that is NULL",
    "str, bytes": "not UTF-8",
    "f64": "not finite",
    "error": "longer than any object in memory",
    "error, NULL": "an error whose message is NULL",
}


@pytest.fixture
def absurd(built, engine):
    """A program whose replies cannot be sent as they are."""
    program = built(harness.PROGRAMS / "absurd.c")
    with serving([program, engine]) as server, Client(server.port) as client:
        client.server = server
        yield client


@pytest.mark.parametrize("method", ["reply", "later"])
def test_a_reply_that_cannot_be_sent_is_a_whole_error(absurd, method):
    for how, why in ABSURD.items():
        error = absurd.error_of(method, {"how": how})
        assert error["code"] == -32603 and why in error["message"], (how, error)
        if method == "reply":
            assert absurd.call("reason") == error["message"]
    assert absurd.error_of(method, {"how": "error, none"}) == {"code": 7, "message": ""}
    absurd.server.stop()
    assert "panicked" not in absurd.server.errors


def test_the_length_of_a_text_says_whether_it_ends_at_its_nul(absurd):
    assert absurd.call("reply", {"how": "content, all"}) == 17
    assert absurd.call("reply", {"how": "str, none"}) == ""


def test_an_absurd_second_reply_changes_nothing(absurd):
    assert absurd.call("reply", {"how": "twice"}) == 1
    assert "replied twice" in absurd.call("reason")


def test_an_unsendable_reply_is_a_whole_error_over_http_and_in_a_batch(absurd):
    calls = [{"jsonrpc": "2.0", "method": "reply", "params": {"how": how}, "id": how}
             for how in ABSURD]  # fmt: skip
    calls.append({"jsonrpc": "2.0", "method": "params", "params": [], "id": "last"})
    request = urllib.request.Request(
        f"http://127.0.0.1:{absurd.server.port}/", json.dumps(calls).encode()
    )
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 200
        replies = {reply["id"]: reply for reply in json.load(reply)}
    assert replies.pop("last")["result"] == 0
    assert {id: reply["error"]["code"] for id, reply in replies.items()} == dict.fromkeys(
        ABSURD, -32603
    )


def test_names_of_absurd_lengths_are_those_of_nothing(absurd):
    for given in ({"a": 1, "": 2}, [1, 2], {}, []):
        assert absurd.call("params", given) == 0


def test_empty_content_is_refused_in_every_build(client):
    assert client.call("content", {"json": "17"}) == 17
    for params in ({"json": ""}, {}):
        assert client.error_of("content", params)["code"] == -32603


def test_a_live_call_is_not_to_be_released(client):
    assert client.call("released") is False
    client.server.stop()
    assert "had not deferred" in client.server.errors


def test_procedures_are_added_while_it_runs(client):
    assert client.call("tagged") == "a tag"
    for number in range(7):
        assert client.error_of(f"new{number}")["code"] == -32601
        assert client.call("add", {"name": f"new{number}"}) is True
        assert client.call(f"new{number}") == f"new{number}"
    assert client.call("add", {"name": "one too many"}) is False
    assert client.call("add", {"name": "tagged"}) is True
    assert client.call("tagged") == "tagged"


def test_a_callback_stops_its_server(client):
    assert client.call("quit") is True
    assert client.line() == b""
    assert client.server.wait() == 0


def test_a_callback_cannot_drive_its_server(client):
    assert "already" in client.call("inside")


@pytest.mark.parametrize("how", ["throw", "exit"])
def test_a_callback_may_only_return(built, engine, how):
    server = harness.Server([built(harness.PROGRAMS / "early_exit.cpp"), engine, how])
    with Client(server.port) as client:
        client.submit("exit_early")
        assert server.wait() == -signal.SIGABRT


def test_programs_that_a_callback_starts_get_no_descriptors(client):
    assert client.call("inherited") == 0
    assert client.call("forked") == 7
    assert client.call("twice") == 1


@pytest.mark.parametrize("how", ["take_call", "take_calls"])
def test_a_child_that_returns_from_a_callback_is_ended(built, engine, how):
    with serving([built(CALLS), engine, how]) as server, Client(server.port) as client:
        # In one send, so that the turn that forks has replies to send.
        numbers = [client.submit(method, {"value": 7}) for method in ("twice", "returned", "twice")]
        replies = [client.message() for _ in numbers]
        assert [(reply["id"], reply["result"]) for reply in replies] == [
            (numbers[0], 1),
            (numbers[1], 107),
            (numbers[2], 1),
        ]
        assert client.call("returned", {"value": 8}) == 108
        client.end()
        # Nothing else has arrived, and no child keeps the connection.
        assert client.rest() == b""
    assert server.errors.count("a forked child has returned from a function") == 2


@pytest.mark.parametrize("how", ["take_call", "take_calls"])
def test_a_callback_may_free_its_server(built, engine, how):
    server = harness.Server([built(CALLS), engine, how])
    with Client(server.port) as client:
        client.submit("free_server")
        if how == "take_calls":
            assert client.message()["result"] is True
        else:
            # Its thread may not return, and then the reply is lost with the connection.
            client.line()
    assert server.wait() == 0


def test_turn_by_turn(built, engine):
    with serving([built(CALLS), engine, "take_call"]) as server, Client(server.port) as client:
        for number in range(100):
            assert named(client, "i64", f'"x":{number}') == number


def test_calls_are_not_lost_between_turns(built, engine):
    with serving([built(CALLS), engine, "take_call"]) as server:
        clients = [Client(server.port) for _ in range(20)]
        for client in clients:
            client.submit("twice")
        time.sleep(0.1)
        for client in clients:
            assert client.message()["result"] == 1
            client.close()


def test_a_connection_closes_after_its_last_exchange(built, engine):
    with serving([built(CALLS), engine, "three"]) as server, Client(server.port) as client:
        for number in range(3):
            assert named(client, "i64", f'"x":{number}') == number
        assert client.line() == b""


def test_a_connection_closes_at_the_end_of_its_lifetime(built, engine):
    with serving([built(CALLS), engine, "old"]) as server, Client(server.port) as client:
        assert named(client, "i64", '"x":1') == 1
        assert client.line() == b""
