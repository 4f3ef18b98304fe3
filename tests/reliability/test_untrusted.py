"""A model is data from somebody else: nothing in it runs, but its chat template, in a sandbox."""

from __future__ import annotations

import ast
import threading
import time
from pathlib import Path

import pytest

from ptd_engine.errors import PromptError
from ptd_engine.text import Tokenizer

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("ptd_engine/**/*.py"), *ROOT.glob("triton_kernels/**/*.py")])
# Modules that turn bytes into objects of any class, or into code.
UNPICKLING = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
USER = [{"role": "user", "content": "hello"}]


def findings(source: str) -> list[str]:
    """What in a source could run something that a file holds, with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [(node.module or "").split(".")[0]]
        found += [f"{node.lineno}: import {name}" for name in named if name in UNPICKLING]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in CALLS or called in {"torch.load", "np.load", "numpy.load", "yaml.load"}:
            found.append(f"{node.lineno}: {called}()")
        for keyword in node.keywords:
            off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "trust_remote_code" and not off:
                found.append(f"{node.lineno}: {called}(trust_remote_code=...)")
    return found


def test_nothing_unpickles_or_evaluates() -> None:
    assert len(SOURCES) > 100
    for path in SOURCES:
        assert findings(path.read_text(encoding="utf-8")) == [], path


def test_what_would_be_found() -> None:
    source = (
        "import pickle\nfrom dill import loads\ntorch.load(p)\neval(s)\nf(trust_remote_code=x)\n"
        "f(trust_remote_code=False)\nmodel.eval()\nre.compile(s)\n"
    )
    assert [line.split(":")[0] for line in findings(source)] == ["1", "2", "3", "4", "5"]


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ (''|attr('__class__'))|attr('__mro__') }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('/etc/passwd').read() }}",
    "{{ lipsum.__globals__.os.popen('true').read() }}",
    "{{ cycler.__init__.__globals__.os.getcwd() }}",
    "{{ self.__init__.__globals__.__builtins__.open('/etc/passwd').read() }}",
    "{{ '{0.__class__.__init__}'.format(messages) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.getcwd() }}",
]


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    tokenizer.hf.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_reaches_nothing_but_the_conversation(
    template: str, tiny_tokenizer: Tokenizer
) -> None:
    tokenizer = with_template(tiny_tokenizer, template + "{{ messages[0].content }}")
    conversation = [dict(message) for message in USER]
    try:
        text = tokenizer.render_chat(conversation)
    except PromptError:
        text = "hello"
    # Either refused, or what it asked for does not exist and renders as nothing.
    assert text.strip() == "hello"
    assert conversation == USER


FAILING = {
    "a range": "{% for i in range(1000000000) %}x{% endfor %}",
    "a division": "{{ 1 // 0 }}",
    "a recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "an attribute": "{{ messages[9].content.x }}",
    "its own refusal": "{{ raise_exception('system messages first') }}",
    "a filter that is not there": "{{ messages | nothing }}",
}


@pytest.mark.parametrize("what", FAILING)
def test_a_template_that_fails_is_the_requests_error(what: str, tiny_tokenizer: Tokenizer) -> None:
    tokenizer = with_template(tiny_tokenizer, FAILING[what])
    with pytest.raises(PromptError, match="chat template refuses"):
        tokenizer.render_chat(USER)


def test_a_template_that_takes_long_takes_its_own_thread_alone(tiny_tokenizer: Tokenizer) -> None:
    # No limit of time is set: docs/reliability.md says so. It must not stop the other threads.
    loops = "{% for a in range(100) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    tokenizer = with_template(tiny_tokenizer, loops + "{{ messages[0].content }}")
    texts: list[str] = []
    rendering = threading.Thread(target=lambda: texts.append(tokenizer.render_chat(USER)))
    rendering.start()
    for _ in range(20):  # as /health does
        time.sleep(0.001)
    assert not texts  # ten million rounds are not over
    rendering.join()
    assert texts == ["hello"]
