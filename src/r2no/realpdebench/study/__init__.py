"""The paper's experiments: declared studies, resumable runs, tables, figures, comparison.

One pass over the fit split (sums) and one over the test split feed every study (M5-M12); the price
of selection takes the first member over the fit split once more.
"""
