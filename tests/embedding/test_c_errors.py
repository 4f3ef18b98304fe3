"""What a caller of libptd.so gets wrong comes back as a status and a message that says what."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_double, c_int32, c_size_t, c_void_p
from typing import Any

import numpy as np
import pytest
from c_library import (
    ARGUMENT,
    BUSY,
    FAILED,
    NOT_FINITE,
    OK,
    ORDER,
    RUNNING,
    CError,
    Config,
    CSession,
    Library,
    Needs,
    Plan,
    Request,
    Stats,
    Step,
    ids,
)

VOCAB = 23


@pytest.fixture
def session(library: Library) -> Iterator[CSession]:
    handle = CSession(library, "ptd", vocab_size=VOCAB, max_seq_len=100)
    yield handle
    handle.close()


def block_of(session: CSession) -> np.ndarray[Any, Any]:
    return np.zeros(session.needs.plan_bytes, np.uint8)


def refused(call: Callable[[], object], status: int, *says: str) -> None:
    with pytest.raises(CError) as caught:
        call()
    assert caught.value.status == status, caught.value
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("drafter", "says"),
    [
        ("ptdd", ["drafter='ptdd'", "none, ptd, prompt-lookup"]),
        ("", ["drafter=''", "hybrid"]),
        (b"\xff\x00\n" + b"a" * 5000, ["drafter='\\xff\\x00\\x0aaaaa", "...'"]),
    ],
)
def test_unknown_drafters(library: Library, drafter: str | bytes, says: list[str]) -> None:
    refused(lambda: CSession(library, drafter), ARGUMENT, *says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"width": 0}', ["width=0", "an integer from 1 to 64"]),
        ('{"width": 65}', ["width=65", "an integer from 1 to 64"]),
        ('{"width": 4.0}', ["width=4.0", "an integer from 1 to 64"]),
        ('{"width": -18446744073709551615}', ["width=-18446744073709551615", "an integer from"]),
        ('{"width": true}', ["width=true", "an integer from 1 to 64"]),
        ('{"width": "4"}', ["width='4'", "an integer from 1 to 64"]),
        ('{"seed": -1}', ["seed=-1", "an integer from 0 to 2^64 - 1"]),
        ('{"seed": 18446744073709551616}', ["byte 9", "does not fit 64 bits"]),
        ('{"share_pool": 1}', ["share_pool=1", "true or false"]),
        ('{"layout": "beside"}', ["layout='beside'", '"sibling" or "chained"']),
        ('{"initialisation": "ner"}', ["initialisation='ner'", '"random" or "context"']),
        ('{"expansion_p": 0}', ["expansion_p=0", "a number from 1e-06 to 1"]),
        ('{"expansion_p": 1e999}', ["byte 16", "too large or too small"]),
        ('{"max_draft_nodes": 200, "max_candidate_nodes": 60}', ["max_candidate_nodes=60", "55"]),
        ('{"breadth": 4}', ["'breadth'", "'ptd'", "width, depth, max_draft_nodes"]),
        ('{"eos_ids": [2]}', ["byte 12", "an array"]),
        ('{"width": null}', ["byte 10", "null"]),
        ('{"width": {}}', ["byte 10", "an object"]),
        ('{"width": 4, "width": 4}', ["byte 13", "'width' stands twice"]),
        ('{"width": 4,}', ["byte 12", "a key"]),
        ('{"width": 4', ["byte 11", "',' or '}' is missing"]),
        ('{"width" 4}', ["byte 9", "':' is missing"]),
        ('{"width": 04}', ["byte 11", "begins with 0"]),
        ('{"width": 4.}', ["byte 12", "a digit is missing"]),
        ('{"width": NaN}', ["byte 10", "a value is missing"]),
        ('{"width": +4}', ["byte 10", "a value is missing"]),
        ("{'width': 4}", ["byte 1", "a key in double quotes"]),
        ('{"width": 4} ;', ["byte 13", "text behind the object"]),
        ("[]", ["byte 0", "'{' is missing"]),
        (" ", ["byte 1", "the text ends"]),
        ('{"\\u12', ["byte 4", "four hexadecimal digits"]),
        ('{"\\ud800"}', ["half a surrogate pair"]),
        ('{"\\x41": 1}', ["byte 3", "an unknown escape"]),
        ('{"wid\nth": 1}', ["byte 5", "a control character"]),
        ('{"width', ["byte 7", "a string does not end"]),
        (b'{"w\xe9": 1}', ["'w\\xe9'", "is not one of drafter 'ptd'"]),
        ('{"' + "k" * 70000 + '": 1}', ["options_size=70007", "at most 65536 bytes"]),
    ],
)
def test_bad_options(library: Library, options: str | bytes, says: list[str]) -> None:
    refused(lambda: CSession(library, "ptd", options), ARGUMENT, *says)


def test_options_may_be_spelled_as_json_allows(library: Library) -> None:
    text = ' {\t"w\\u0069dth" :\r\n 4 , "expansion_p": 8.0E-1, "layout": "chain\\u0065d"} '
    CSession(library, "ptd", text).close()
    CSession(library, "none", "{}").close()
    refused(lambda: CSession(library, "none", '{"a": 1}'), ARGUMENT, "'a'", "allowed is none")


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"vocab_size": 0}, ["vocab_size=0", "an integer from 1 to 2147483647"]),
        ({"vocab_size": -5}, ["vocab_size=-5"]),
        ({"max_seq_len": 1}, ["max_seq_len=1", "an integer from 2 to 1073741824"]),
        ({"output_top_k": 4}, ["output_top_k=4", "at least the drafter's 8"]),
        ({"output_top_k": 1025}, ["output_top_k=1025", "0 to 1024"]),
        ({"max_path": 257}, ["max_path=257", "0 to 256"]),
        ({"max_nodes": -1}, ["max_nodes=-1", "0 to 256"]),
        ({"reserved": 1}, ["reserved=1"]),
        ({"n_node_buckets": 2}, ["node_buckets=null"]),
        ({"node_buckets": ids([8, 0]), "n_node_buckets": 2}, ["node_buckets[1]=0", "1 to 256"]),
        ({"node_buckets": ids([8]), "n_node_buckets": 300}, ["n_node_buckets=300", "at most 256"]),
        ({"eos_ids": ids([-2]), "n_eos_ids": 1}, ["eos_ids[0]=-2"]),
        ({"eos_ids": ids([2]), "n_eos_ids": 2**64 - 1}, ["n_eos_ids=18446744073709551615"]),
    ],
)
def test_bad_configurations(library: Library, limits: dict[str, Any], says: list[str]) -> None:
    refused(lambda: CSession(library, "token-recycling", **limits), ARGUMENT, *says)


@pytest.mark.parametrize(
    ("prompt", "request_", "says"),
    [
        ([], {}, ["n_prompt=0", "1 to 99"]),
        ([1] * 100, {}, ["n_prompt=100", "1 to 99"]),
        ([1, VOCAB], {}, ["prompt[1]=23", "a token id from 0 to 22"]),
        ([-1], {}, ["prompt[0]=-1"]),
        ([1], {"max_new_tokens": -1}, ["max_new_tokens=-1"]),
        ([1], {"temperature": math.nan}, ["temperature=nan", "a number from 0 to 1e+06"]),
        ([1], {"temperature": math.inf}, ["temperature=inf"]),
        ([1], {"temperature": -0.5}, ["temperature=-0.5"]),
        ([1], {"top_k": -1}, ["top_k=-1"]),
        ([1], {"top_p": math.nan}, ["top_p=nan", "0 to 1"]),
        ([1], {"top_p": 1.5}, ["top_p=1.5"]),
        ([1], {"min_p": -math.nan}, ["min_p=", "nan"]),
        ([1], {"reserved": 7}, ["reserved=7"]),
        ([1], {"stop_ids": [3, VOCAB]}, ["stop_ids[1]=23", "0 to 22"]),
    ],
)
def test_bad_requests(
    session: CSession, prompt: list[int], request_: dict[str, Any], says: list[str]
) -> None:
    session.begin([1, 2], max_new_tokens=9)
    refused(lambda: session.begin(prompt, **request_), ARGUMENT, *says)
    assert says[0] in session.error
    # The request under way goes on.
    assert session.plan(block_of(session)).prefix_len == 1


def test_calls_out_of_order(session: CSession) -> None:
    block = block_of(session)
    refused(lambda: session.plan(block), ORDER, "no request has begun", "ptd_session_begin")
    refused(lambda: session.commit([1]), ORDER, "no request has begun")
    refused(lambda: session.observe_prompt(0, np.zeros(1, np.int32)), ORDER, "no request has begun")
    assert session.output == [] and session.stats["prompt_len"] == 0
    session.begin([1, 2], max_new_tokens=1)
    refused(lambda: session.commit([1]), ORDER, "no step is planned", "ptd_session_plan")
    refused(lambda: session.set_step_cost([1], [0.1]), ORDER, "between two requests")
    plan = session.plan(block)
    refused(lambda: session.plan(block), ORDER, "planned already", "ptd_session_commit")
    refused(lambda: session.observe_prompt(0, np.zeros(1, np.int32)), ORDER, "before the first")
    session.commit([4] * plan.n_nodes)
    refused(lambda: session.plan(block), ORDER, "the request has ended")
    refused(lambda: session.commit([4]), ORDER, "the request has ended")
    assert session.output == [4]
    session.begin([1, 2], max_new_tokens=0)
    refused(lambda: session.plan(block), ORDER, "the request has ended")


def test_bad_outputs_can_be_given_again(session: CSession) -> None:
    session.begin([1, 2], max_new_tokens=9)
    n = session.plan(block_of(session)).n_nodes
    refused(lambda: session.commit([5] * (n - 1)), ARGUMENT, f"n_output={n - 1}", f"{n} to {n}")
    refused(lambda: session.commit([5] * (n + 1)), ARGUMENT, f"n_output={n + 1}")
    refused(lambda: session.commit([VOCAB] * n), ARGUMENT, "output[0]=23", "0 to 22, or -1")
    refused(lambda: session.commit([5] * (n - 1) + [-2]), ARGUMENT, f"output[{n - 1}]=-2")
    assert session.commit([5] * n)[0][0] == 5


def test_logits_that_are_not_finite_fail_the_request_alone(session: CSession) -> None:
    session.begin([1, 2], max_new_tokens=9)
    n = session.plan(block_of(session)).n_nodes
    refused(lambda: session.commit([-1] * n), NOT_FINITE, "not finite")
    assert session.stats["finish_reason"] == FAILED
    refused(lambda: session.plan(block_of(session)), ORDER, "the request has failed")
    session.begin([1, 2], max_new_tokens=9)
    assert session.stats["finish_reason"] == RUNNING


def test_bad_blocks(session: CSession) -> None:
    session.begin([1, 2], max_new_tokens=9)
    block = np.zeros(session.needs.plan_bytes + 8, np.uint8)
    least = session.needs.plan_bytes
    refused(lambda: session.plan(block[: least - 1]), ARGUMENT, f"block_size={least - 1}", "least")
    refused(lambda: session.plan(block[1 : least + 1]), ARGUMENT, "block is not valid", "8 bytes")


def test_prompt_outputs_must_be_of_the_prompt(library: Library) -> None:
    session = CSession(library, "token-recycling", vocab_size=VOCAB)
    session.begin([1, 2, 3], max_new_tokens=9)
    rows = np.zeros((2, 9), np.int32)
    for first, outputs, says in (
        (0, rows.ravel()[:10], "n_outputs=10"),
        (1, rows, "n_outputs=18"),
        (4, rows, "first=4"),
        (2**63, rows, "first="),
        (0, rows + VOCAB, "outputs[0]=23"),
    ):
        refused(lambda f=first, o=outputs: session.observe_prompt(f, o), ARGUMENT, says)  # type: ignore[misc]
    session.observe_prompt(0, rows - 1)
    session.close()


def test_bad_step_costs(library: Library) -> None:
    session = CSession(library, "hybrid")
    assert session.needs.step_cost == 1
    for rows, seconds, says in (
        ([], [], "n=0"),
        ([0], [0.1], "rows=0"),
        ([1, 1], [0.1, 0.1], "rows=1"),
        ([1, 300], [0.1, 0.1], "rows=300"),
        ([1], [math.nan], "seconds=nan"),
        ([1], [0.0], "seconds=0"),
    ):
        refused(lambda r=rows, s=seconds: session.set_step_cost(r, s), ARGUMENT, says)  # type: ignore[misc]
    session.set_step_cost([1, 8], [0.1, 0.2])
    session.close()


def test_null_and_misaligned_pointers(library: Library, session: CSession) -> None:
    c, handle = library.c, session.handle
    null_ids, null = POINTER(c_int32)(), c_void_p()
    request, step, plan, out = Request(max_new_tokens=9), Step(), Plan(), c_void_p(1)
    a_size, prompt = c_size_t(), ids([1, 2])
    config = Config(vocab_size=9, max_seq_len=9)
    block = block_of(session)
    memory = block.ctypes.data_as(c_void_p)
    odd = ctypes.cast(block.ctypes.data + 1, POINTER(c_int32))

    def says(status: int, name: str) -> None:
        assert status == ARGUMENT
        assert name in c.ptd_last_error().decode()

    says(c.ptd_session_create(b"ptd", 3, None, 0, byref(config), None), "session=null")
    says(c.ptd_session_create(b"ptd", 3, None, 0, None, byref(out)), "config=null")
    assert out.value is None, "no handle after an error"
    says(c.ptd_session_create(None, 3, None, 0, byref(config), byref(out)), "drafter=null")
    says(c.ptd_session_create(b"ptd", 3, None, 2, byref(config), byref(out)), "options=null")
    says(c.ptd_session_create(None, 0, None, 0, byref(config), byref(out)), "drafter=''")
    says(c.ptd_drafter_options(None, 3, None, 0, None), "name=null")
    says(c.ptd_drafter_options(b"ptd", 3, None, 9999, None), "buffer_size=9999")
    says(c.ptd_session_begin(handle, null_ids, 2, byref(request)), "prompt=null")
    says(c.ptd_session_begin(handle, odd, 2, byref(request)), "aligned to 4 bytes")
    says(c.ptd_session_begin(handle, prompt, 2, None), "request=null")
    says(c.ptd_session_needs(handle, None), "needs=null")
    says(c.ptd_session_output(handle, None, byref(a_size)), "tokens=null")
    says(c.ptd_session_output(handle, byref(null_ids), None), "n_tokens=null")
    says(c.ptd_session_stats(handle, None), "stats=null")
    says(c.ptd_session_set_step_cost(handle, null_ids, POINTER(c_double)(), None, 1), "rows=null")
    assert c.ptd_session_begin(handle, prompt, 2, byref(request)) == OK
    says(c.ptd_session_plan(handle, null, block.nbytes, byref(plan)), "block=null")
    says(c.ptd_session_plan(handle, memory, block.nbytes, None), "plan=null")
    assert c.ptd_session_plan(handle, memory, block.nbytes, byref(plan)) == OK
    says(c.ptd_session_commit(handle, null_ids, plan.n_nodes, byref(step)), "output=null")
    says(c.ptd_session_commit(handle, prompt, plan.n_nodes, None), "step=null")
    for status in (
        c.ptd_session_needs(null, byref(Needs())),
        c.ptd_session_begin(null, prompt, 2, byref(request)),
        c.ptd_session_plan(null, memory, block.nbytes, byref(plan)),
        c.ptd_session_commit(null, prompt, 2, byref(step)),
        c.ptd_session_stats(null, byref(Stats())),
    ):
        says(status, "session=null")
    assert c.ptd_session_error(null) == b""
    c.ptd_session_destroy(null)


def test_structures_of_another_size(library: Library, session: CSession) -> None:
    config = Config(vocab_size=9, max_seq_len=9)
    config.struct_size = 8
    refused(
        lambda: CSession(library, "ptd", config=config),
        ARGUMENT,
        "config->struct_size=8",
        f"allowed is {ctypes.sizeof(Config)}, sizeof(ptd_config)",
    )
    for function, structure in (("stats", Stats()), ("needs", Needs())):
        structure.struct_size = 0
        status = getattr(library.c, f"ptd_session_{function}")(session.handle, byref(structure))
        assert status == ARGUMENT
        assert f"{function}->struct_size=0" in session.error


def test_messages_belong_to_their_thread(library: Library, session: CSession) -> None:
    refused(lambda: session.begin([]), ARGUMENT, "n_prompt=0")
    other: list[bytes] = []
    thread = threading.Thread(target=lambda: other.append(library.c.ptd_last_error()))
    thread.start()
    thread.join()
    assert other == [b""]
    assert b"n_prompt=0" in library.c.ptd_last_error()
    assert "n_prompt=0" in session.error


def test_a_handle_in_two_threads_is_busy_or_serves_one_after_the_other(library: Library) -> None:
    session = CSession(library, "hybrid", vocab_size=VOCAB, max_seq_len=5000)
    prompt = [i * i % VOCAB for i in range(4000)]  # so that beginning takes a moment
    statuses: list[int] = []
    messages: set[str] = set()

    def work() -> None:
        for _ in range(20):
            try:
                session.begin(prompt, max_new_tokens=9)
                statuses.append(OK)
            except CError as error:
                statuses.append(error.status)
                messages.add(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 80
    assert set(statuses) <= {OK, BUSY}
    assert OK in statuses
    assert all("another thread" in message for message in messages)
    session.close()
