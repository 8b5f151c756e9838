"""What drawn plans never have beside each other. Nothing is started."""

from __future__ import annotations

import pytest

from psconform.faults.fault_generator import drawn_plan
from psconform.faults.kinds import PACKETS, kinds
from psconform.layout import Layout

LAYOUT = Layout(ps=3, workers=4)
STEPS = 50


def test_no_two_drawn_faults_strike_the_same_packets():
    """What one has let through the other never sees."""
    for seed in range(300):
        plan = drawn_plan("random", layout=Layout(ps=1, workers=2), steps=STEPS, seed=seed, containers=True)
        packets = [set(fault.links) for fault in plan if kinds()[fault.kind].of == PACKETS]
        assert all(not one & other for n, one in enumerate(packets) for other in packets[:n])


def test_nobody_moves_while_its_peers_may_not_hear_of_it():
    """They would go on sending to where it was."""
    moves = 0
    for seed in range(600):
        plan = drawn_plan("random", layout=Layout(ps=1, workers=2), steps=STEPS, seed=seed, containers=True)
        for fault in (fault for fault in plan if fault.kind == "new-address"):
            moves += 1
            assert not [other for other in plan if other.kind == "disconnect"]
            ends = {
                str(end)
                for o in plan
                if kinds()[o.kind].of == PACKETS
                for ln in o.links
                for end in (ln.source, ln.destination)
            }
            assert str(fault.task) not in ends
    assert moves


@pytest.mark.parametrize("seed", range(0, 600, 100))
def test_no_toxic_ends_on_a_link_that_is_about_to_be_reset(seed):
    """Toxiproxy 2.12 hangs then: Shopify/toxiproxy#558."""
    together = 0
    for plan in (drawn_plan("random", layout=LAYOUT, steps=STEPS, seed=seed + n) for n in range(100)):
        slowed = [fault for fault in plan if fault.kind in ("latency", "bandwidth", "slice")]
        resets = [fault for fault in plan if fault.kind == "reset"]
        together += bool(slowed and resets)
        assert not [one for one in resets if any(set(one.links) & set(other.links) for other in slowed)]
    assert together
