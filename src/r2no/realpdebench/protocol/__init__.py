"""RealPDEBench from a preset to a score: the published protocol, evaluation, resumable runs."""
