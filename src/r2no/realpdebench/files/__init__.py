"""Files of the benchmark: both layouts, window lists, small data sets, downloads."""
