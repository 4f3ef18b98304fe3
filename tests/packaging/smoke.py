"""Drafts with an installed ptd_engine and prints where it lies: what a wheel must do anywhere."""

from __future__ import annotations

from importlib.metadata import version

import ptd_engine
from ptd_engine import _core

tree = _core.DraftTree(width=2, depth=3, max_nodes=16)
tree.init([[5, 6], [7]])
tree.expand([6, 8, 9])
assert tree.rows() == [(5, -1), (6, 0), (8, 1), (7, -1), (9, 3)], tree.rows()
pool = _core.CandidatePool()
pool.merge(tree)
assert pool.retrieve(5, 4) == [(6, -1), (8, 0)], pool.retrieve(5, 4)
assert version("ptd-engine") == ptd_engine.__version__
print(ptd_engine.__file__)
