"""The speed of a machine: what a step and a decode take, what they should take on this card, and why they take longer.

:mod:`sdort.checkup.command` measures what :mod:`sdort.checkup.graphs` has in processes of its own
(:mod:`sdort.checkup.worker`), :mod:`sdort.checkup.prediction` says what that should take, and
:mod:`sdort.checkup.reasons` what is wrong; :mod:`sdort.checkup.figures` is the file that can be sent.
"""
