"""A drafter as an LLM shows it: what it drafted, with the tokens' texts.

llm.generate("One, two, three,")
llm.drafter.explain()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptd_engine import _core
from ptd_engine.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


class DrafterView:
    """The drafter of an engine; attributes besides these are the drafter's own.

    Attributes:
        core: the drafter itself.
    """

    def __init__(self, core: _core.Drafter, text_of: Callable[[int], str]) -> None:
        """Join a drafter and the text of a token id, special tokens included."""
        self.core = core
        self._text_of = text_of

    def __getattr__(self, name: str) -> Any:
        """What the drafter has; copying and pickling look for "core" before there is one."""
        if name == "core":
            raise AttributeError(name)
        return getattr(self.core, name)

    def __dir__(self) -> list[str]:
        """Own attributes and the drafter's."""
        return sorted({*super().__dir__(), *dir(self.core)})

    def __repr__(self) -> str:
        """Name the drafter."""
        return f"DrafterView({type(self.core).__name__})"

    def explain(self, *, console: Console | None = None) -> None:
        """Print the last step's tree: texts, probabilities of the paths, who proposed them.

        Accepted nodes are green and marked with a tick. After an output, or between two chunks of a
        stream; a tree of a step that was cancelled has no accepted nodes.

        Args:
            console: where to; None: a new one on standard output.

        Raises:
            ConfigError: the drafter keeps no probabilities.
        """
        if not isinstance(self.core, _core.HybridDrafter):
            raise ConfigError(
                f"{type(self.core).__name__} keeps no tree with probabilities to explain: load the "
                "model with drafter='hybrid', or read the steps' trees of "
                "llm.stream(prompt, trees=True)."
            )
        from rich.console import Console
        from rich.text import Text
        from rich.tree import Tree

        out = Console() if console is None else console
        drafter = self.core
        if drafter.root < 0:
            out.print("No step yet: generate something first.", markup=False, highlight=False)
            return
        names = list(drafter.source_counts)
        nodes = drafter.nodes
        accepted = sum(node[4] for node in nodes)
        title = Text(f"root {self._shown(drafter.root)}", style="bold")
        title.append(f"  budget {drafter.budgets[-1]} nodes, accepted {accepted}", style="not bold")
        branches = [Tree(title)]
        for token, parent, probability, bits, taken in nodes:
            label = Text(self._shown(token), style="bold green" if taken else "")
            label.append(" ✓" if taken else "")
            label.append(f"  {probability:.2f}", style="not bold")
            by = ", ".join(name for bit, name in enumerate(names) if bits >> bit & 1)
            label.append(f"  {by}", style="not bold dim")
            branches.append(branches[parent].add(label))
        out.print(branches[0], highlight=False)

    def _shown(self, token: int) -> str:
        return repr(self._text_of(token))
