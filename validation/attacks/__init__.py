"""Attacks: damage, hostile files, kills, races, full disks and odd arguments, counted.

Each module is a script (``python -m validation.attacks.NAME``) that prints a row per attack and
ends with code 1 if anything went wrong; ``python -m validation.attacks`` runs them all.
"""
