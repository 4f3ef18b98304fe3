"""Algorithm 1: Progressive Tree Drafting around a model that is a function of the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from reference.candidate_pool import CandidatePool
from reference.draft_tree import DraftTree
from reference.node import Node, Row
from reference.step_plan import StepPlan, build_plan
from reference.verification import verify_walk

NextToken = Callable[[Sequence[int]], int]
Successors = Callable[[Sequence[int]], Sequence[int]]
Plant = Callable[[], Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Settings:
    width: int = 4
    depth: int = 6
    max_draft_nodes: int = 96
    max_candidate_nodes: int = 60
    max_pool_nodes_per_key: int = 60
    max_pool_keys: int = 4096
    layout: str = "sibling"
    eos_ids: frozenset[int] = frozenset()
    max_new_tokens: int = 128
    max_seq_len: int = 4096
    max_rows: int = 256
    max_path: int = 64
    recycle_verified: bool = False
    expansion: str = "greedy"
    expansion_k: int = 4
    expansion_p: float = 0.8
    initialisation: str = "random"


def token_limit(prompt: Sequence[int], settings: Settings) -> int:
    """How many tokens may be output: the request's limit, or what the context has left."""
    return min(settings.max_new_tokens, settings.max_seq_len - len(prompt))


def plain_decode(next_token: NextToken, prompt: Sequence[int], settings: Settings) -> list[int]:
    """One token a step: what every speculative output has to equal."""
    output: list[int] = []
    while len(output) < token_limit(prompt, settings):
        output.append(next_token([*prompt, *output]))
        if output[-1] in settings.eos_ids:
            break
    return output


def chained(rows: Sequence[Row]) -> list[Row]:
    """The layout in which draft root i is read as the token after draft root i - 1."""
    linked: list[Row] = []
    previous_root = -1
    for row, (token, parent) in enumerate(rows):
        if parent < 0:
            linked.append((token, previous_root))
            previous_root = row
        else:
            linked.append((token, parent))
    return linked


def verified_tree(plan: StepPlan, predictions: Sequence[int]) -> Node:
    """Root and candidates, each with the model's own next token as one more (last) child."""
    nodes = [Node(plan.tokens[row]) for row in range(plan.n_verify)]
    for row in range(1, plan.n_verify):
        nodes[plan.parents[row]].children.append(nodes[row])
    for node, token in zip(nodes, predictions, strict=False):
        if node.child(token) is None:
            node.children.append(Node(token))
    return nodes[0]


def further_successors(best: int, listed: Sequence[int]) -> list[int]:
    """Of a row's listed successors (-1: beyond the top-p set), those to append after the best.

    As many in all as are listed. Where logits are equal the listed order may begin with another
    id than the row's own prediction, which still comes first.
    """
    if best < 0:
        return []
    inside = [token for token in listed if token >= 0]
    return [token for token in inside if token != best][: max(len(inside) - 1, 0)]


def context_chains(prompt: Sequence[int], eos_ids: Sequence[int]) -> list[list[int]]:
    """The tokens before the root, EOS left out, in pairs from the end; the last pair comes first.

    The prompt's last token is the root of the first step.
    """
    tokens = [token for token in prompt[:-1] if token not in eos_ids]
    pairs = []
    while tokens:
        pairs.append(tokens[-2:])
        tokens = tokens[:-2]
    return pairs


def first_chains(
    given: Sequence[Sequence[int]], settings: Settings, most: int = 2
) -> list[list[int]]:
    """Of the given chains those that are planted: two at most, of different first tokens."""
    planted: list[list[int]] = []
    for chain in given:
        if not chain or chain[0] in settings.eos_ids or len(planted) >= min(most, settings.width):
            continue
        if chain[0] not in [other[0] for other in planted]:
            planted.append(list(chain[: settings.depth]))
    return planted


@dataclass
class Step:
    """What one step of the loop did, and the state it left behind."""

    output: list[int]  # tokens that were kept
    candidate_rows: int
    draft_rows: int
    draft_tree: DraftTree
    pool: CandidatePool


def decode(
    next_token: NextToken,
    prompt: Sequence[int],
    plant: Plant,
    settings: Settings,
    successors: Successors | None = None,
) -> Iterator[Step]:
    """Retrieve, forward, verify, expand, merge, refill, step and prune, until stopped.

    `next_token(context)` is the model: its greedy token after the context; `successors(context)`,
    asked unless the expansion is greedy, its expansion_k likeliest ones, with -1 for those beyond
    the top-p set. `plant()` gives the
    chains that the draft tree starts from. Algorithm 1 calls for them once; here they are asked
    for again when pruning has left no root, without which nothing would ever be drafted again.
    """
    draft_tree = DraftTree(
        settings.width, settings.depth, settings.max_draft_nodes, settings.eos_ids
    )
    draft_tree.init(plant())
    pool = CandidatePool(settings.max_pool_nodes_per_key, settings.max_pool_keys)
    committed = list(prompt)
    last_length = len(prompt) + token_limit(prompt, settings)

    while len(committed) < last_length:
        # 1. Retrieve.
        budget = min(settings.max_candidate_nodes, settings.max_rows - 1)
        candidate_tree = pool.retrieve(committed[-1], budget)

        # 2. One forward over [root | candidates | drafts].
        draft_rows = draft_tree.rows()
        if settings.layout == "chained":
            draft_rows = chained(draft_rows)
        plan = build_plan(
            committed[-1],
            len(committed) - 1,
            candidate_tree,
            draft_rows,
            max_seq_len=settings.max_seq_len,
            max_rows=settings.max_rows,
            max_path=settings.max_path,
        )
        predictions = [
            next_token([*committed[:-1], *plan.path(row)]) for row in range(len(plan.tokens))
        ]

        # 3. Verify: the accepted path and one bonus token.
        path = verify_walk(plan.tokens, plan.parents, predictions, plan.n_verify)
        output = [plan.tokens[row] for row in path]
        output.append(predictions[path[-1] if path else 0])

        # Option: what was verified goes into the pool as the draft tree does.
        if settings.recycle_verified:
            pool.merge_nodes(list(verified_tree(plan, predictions).preorder()))

        # 4. Expand.
        grown = [-1 if row is None else predictions[row] for row in plan.draft_rows]
        others: list[list[int]] = []
        if settings.expansion != "greedy" and successors is not None:
            for row, best in zip(plan.draft_rows, grown, strict=True):
                context = [] if row is None else [*committed[:-1], *plan.path(row)]
                others.append(further_successors(best, successors(context) if context else []))
        draft_tree.expand(grown, others)

        # 5. Merge, before any pruning.
        pool.merge(draft_tree)

        # 6. Refill.
        draft_tree.refill()

        # 7. Step and prune.
        draft_tree.step_and_prune()
        if not draft_tree.roots:
            draft_tree.init(plant())

        # 8. Append; Algorithm 1 as printed overshoots, so the commit is cut at EOS and limit.
        output = output[: last_length - len(committed)]
        for index, token in enumerate(output):
            if token in settings.eos_ids:
                output = output[: index + 1]
                break
        committed.extend(output)
        drafts = len(plan.tokens) - plan.n_verify
        yield Step(output, plan.n_verify - 1, drafts, draft_tree, pool)
        if output[-1] in settings.eos_ids:
            return
