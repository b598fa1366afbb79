"""What an adaptation costs, held against what it takes."""

import torch
from tests.support.memory import memory_for_no_more_than

from r2no.adaptation import AdaptSettings, EnsembleSettings
from r2no.adaptation.columns import expected
from r2no.adaptation.costs import search_bytes, sums_bytes
from r2no.data import ArrayWindows
from r2no.ensemble import GramSums, solve_nested

SETTINGS = AdaptSettings(members=0, ensemble=EnsembleSettings(recall=2, partners=1, lead_groups=5))
FIELDS = ArrayWindows([torch.zeros(10, 64, 128, 2)], 5, 5).fields
GROUPS = 4


def test_a_search_takes_the_memory_that_the_doctor_expects() -> None:
    columns, cells, leads = expected(SETTINGS, FIELDS, blocks=GROUPS)
    sides = torch.randn(GROUPS, cells.num_cells, 2 * leads, columns.number + 1, 3).double()
    sides *= cells.occupied[:, None, None, None]
    sums = GramSums(sides @ sides.mT, torch.ones(GROUPS, dtype=torch.float64))
    assert sums.moments.nbytes == sums_bytes(SETTINGS, FIELDS, groups=GROUPS)
    folds = [(tuple(g for g in range(GROUPS) if g != own), (own,)) for own in range(GROUPS)]
    more = search_bytes(SETTINGS, FIELDS, groups=GROUPS, folds=len(folds))
    assert more > 2 * sums.moments.nbytes
    with memory_for_no_more_than(round(1.5 * more / 2**20)):
        solve_nested(sums, folds, cells, leads=leads, columns=columns)


def test_published_cells_are_not_searched_for() -> None:
    paper = AdaptSettings(members=1, ensemble=EnsembleSettings(cells="published"))
    assert search_bytes(paper, FIELDS, groups=2, folds=2) == 0
