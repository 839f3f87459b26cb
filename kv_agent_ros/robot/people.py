"""Where simulated people walk: a pure function of time, so that no thread has to move them."""

import itertools
import math

from kv_agent_ros.robot.home_file import Point, Walker


def position(walker: Walker, time_s: float, phase: float) -> Point:
    """Where the walker is on the way along its route and back; `phase` 0..1 is the part of it walked at time 0."""
    loop = (*walker.route, *walker.route[-2::-1])
    legs = [(a, b, math.dist(a, b)) for a, b in itertools.pairwise(loop) if a != b]
    total_m = sum(length for _, _, length in legs)
    rest_m = (phase * total_m + walker.speed_mps * time_s) % total_m if total_m else 0.0
    for (ax, ay), (bx, by), length in legs:
        if rest_m <= length:
            part = rest_m / length
            return (ax + part * (bx - ax), ay + part * (by - ay))
        rest_m -= length
    return walker.route[0]
