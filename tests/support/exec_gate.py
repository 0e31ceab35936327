"""Whether a kernel's machine code exchanges values between lanes only while every lane of the wave takes part.

An AMD wave runs the instructions of a branch for the lanes whose bits are set in the register EXEC. An exchange there
reads lanes that are off: it gets nothing of them, or what has not been computed for them, as a compiler that moves the
exchange into a branch moves what it passes after it. Sources call exchanges with all lanes (device/device.h); LLVM 19
has moved them into branches all the same (v_permlanex16, https://github.com/llvm/llvm-project/pull/142962). So this
proves of each exchange in a kernel that EXEC is there what it was at the kernel's beginning, and names those of which
it cannot. What a branch that whole waves take needs for that is device/wave.h's wave_of, which makes it a jump.

The proof is an abstract interpretation of the kernel's control flow graph. A mask is a Boolean function (a reduced
ordered decision diagram) of what is not known: the result of a comparison is any part of EXEC. Where paths meet, what
differs is unknown again, except that a mask that makes up EXEC to the same whole on both still does: it is how loops
gather the lanes that have left. It takes as given that blocks are of whole waves, so that EXEC has every lane at first.

v_readfirstlane and v_mbcnt are no exchanges here: compilers use them in branches, for the lanes that are there. A vote
(device/wave.h) is a comparison, whose result depends on EXEC, and is not told from others.
"""

from __future__ import annotations

import re
from functools import cache, partial, reduce
from typing import NamedTuple

EXCHANGE = re.compile(r"v_permlane|ds_swizzle|ds_b?permute|v_(?:readlane|writelane|wmma|swmmac|mfma|smfmac)|\w+_dpp$")
"""Mnemonics of instructions by which a lane reads, or a matrix product takes, what other lanes have."""


class _Masks:
    """Boolean functions as nodes of one decision diagram: 0 is none of the lanes, 1 all."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int, int]] = [(1 << 60, 0, 0), (1 << 60, 1, 1)]  # unknown, if set, if not
        self.found: dict[tuple[int, int, int], int] = {}
        self.chosen: dict[tuple[int, int, int], int] = {}
        self.numbers: dict[object, int] = {}
        self.depends: list[int] = [0, 0]  # bits of the unknowns of a node

    def unknown(self, name: object) -> int:
        return self._node(self.numbers.setdefault(name, len(self.numbers)), 1, 0)

    def _node(self, number: int, high: int, low: int) -> int:
        if high == low:
            return high
        key = number, high, low
        if key not in self.found:
            self.found[key] = len(self.nodes)
            self.nodes.append(key)
            self.depends.append(1 << number | self.depends[high] | self.depends[low])
        return self.found[key]

    def choose(self, test: int, high: int, low: int) -> int:
        """``high`` where ``test`` is set, elsewhere ``low``."""
        if test < 2:
            return high if test else low
        if high == low:
            return high
        key = test, high, low
        if key not in self.chosen:
            number = min(self.nodes[each][0] for each in key)
            of = [self.nodes[each] if self.nodes[each][0] == number else (number, each, each) for each in key]
            self.chosen[key] = self._node(
                number, self.choose(*(each[1] for each in of)), self.choose(*(each[2] for each in of))
            )
        return self.chosen[key]

    def both(self, a: int, b: int) -> int:
        return self.choose(a, b, 0)

    def either(self, a: int, b: int) -> int:
        return self.choose(a, 1, b)

    def without(self, a: int) -> int:
        return self.choose(a, 0, 1)


class Instruction(NamedTuple):
    address: int
    name: str
    operands: tuple[str, ...]

    @property
    def target(self) -> int:
        """Of a branch: 16 bits of distance in words, from the next instruction."""
        distance = int(self.operands[0])
        return self.address + 4 + 4 * (distance - (distance >> 15 << 16))

    def __str__(self) -> str:
        return f"{self.address:#x}: {self.name} {', '.join(self.operands)}"


_LINE = re.compile(r"^\t(\w+)(?: (.*?))?\s*// ([0-9A-F]+):", re.MULTILINE)


def parse(body: str) -> tuple[Instruction, ...]:
    """Instructions of what ``llvm-objdump -d`` prints for one symbol, with addresses from its beginning on."""
    found = _LINE.findall(body)
    first = int(found[0][2], 16)
    return tuple(
        Instruction(int(address, 16) - first, name, tuple(operands.split(", ")) if operands else ())
        for name, operands, address in found
    )


@cache
def exchanges(code: tuple[Instruction, ...], wave: int) -> list[tuple[Instruction, bool]]:
    """A kernel's exchanges, and whether every lane of the wave of 32 or 64 provably takes part in each.

    Raises:
        ValueError: code that this cannot interpret.
    """
    return _Kernel(code, wave).exchanges()


_VCC, _EXEC = 106, 126
_NAMED = {
    "vcc": (106, 107),
    "vcc_lo": (106,),
    "vcc_hi": (107,),
    "exec": (126, 127),
    "exec_lo": (126,),
    "exec_hi": (127,),
}


@cache
def scalars(operand: str) -> tuple[int, ...]:
    """Numbers of the scalar registers that an operand names; VCC is 106 and 107, EXEC 126 and 127."""
    if found := re.fullmatch(r"s(\d+)|s\[(\d+):(\d+)\]", operand):
        return (int(found[1]),) if found[1] else tuple(range(int(found[2]), int(found[3]) + 1))
    return _NAMED.get(operand, ())


_SOURCES_ONLY = re.compile(r"s_(?:cmp|bitcmp)")
_CARRIES = re.compile(r"v_(?:add|sub|subrev)(?:c|b|br|brev)?_co_|v_div_scale|v_mad_[ui]64_[ui]32")
_OTHER_FLOW = re.compile(r"s_(?:setpc|swappc|call|rfe|cbranch_[gi]_fork|cbranch_join|subvector_loop)")
_ALGEBRA = re.compile(r"s_(mov|not|and|or|xor|andn[12]|and_not[01]|orn[12]|or_not[01]|cselect)(_saveexec)?_b(32|64)")


def written(instruction: Instruction) -> tuple[int, ...]:
    """Scalar registers that an instruction may write, EXEC where it is an operand included."""
    operands = instruction.operands
    if not operands or _SOURCES_ONLY.match(instruction.name):
        return ()
    found = scalars(operands[0])
    return found + scalars(operands[1]) if _CARRIES.match(instruction.name) else found


State = dict[int, int]
"""The first scalar register of a mask -> its value; what has no entry is unknown."""


class _Kernel:
    """The interpretation of one kernel's instructions."""

    VISITS = 100
    """Of all blocks on average until all must have settled: with each a state says less, of few registers."""

    def __init__(self, code: tuple[Instruction, ...], wave: int) -> None:
        self.masks, self.wave, self.code = _Masks(), wave, code
        self.exec = "exec_lo" if wave == 32 else "exec"
        if other := next((each for each in code if _OTHER_FLOW.match(each.name)), None):
            raise ValueError(f"a kernel that calls or returns: {other}")
        places = {each.address: i for i, each in enumerate(code)}
        self.next: dict[int, list[int]] = {}  # by a block's beginning: where it may go on
        jumps = {i: places[each.target] for i, each in enumerate(code) if "branch" in each.name}
        ends = {i for i, each in enumerate(code) if each.name.startswith("s_endpgm")} | set(jumps)
        starts = sorted({0, *jumps.values(), *(i + 1 for i in ends if i + 1 < len(code))})
        self.ends = dict(zip(starts, [*starts[1:], len(code)], strict=True))
        for start, end in self.ends.items():
            last = code[end - 1].name
            self.next[start] = [jumps[end - 1]] if end - 1 in jumps else []
            if not last.startswith(("s_branch", "s_endpgm")):
                self.next[start].append(end)
        self.writes = {i: written(each) for i, each in enumerate(code)}
        counts = {i for i, each in enumerate(code) if self.writes[i] or each.name.startswith("v_cmp")}
        self.steps = {start: [i for i in range(start, end) if i in counts] for start, end in self.ends.items()}

    def exchanges(self) -> list[tuple[Instruction, bool]]:
        """Those that can be reached, and whether every lane of the wave takes part."""
        places = {i for i, each in enumerate(self.code) if EXCHANGE.match(each.name)}
        found = []
        for start, state in self.states().items():
            for place in sorted({*self.steps[start], *(i for i in places if start <= i < self.ends[start])}):
                if place in places:
                    found.append((self.code[place], state.get(_EXEC) == 1))
                self.step(state, place)
        return found

    def states(self) -> dict[int, State]:
        """At every block's beginning.

        Loops settle from the inside out: where a way back brings something new to a block, what lies between is done
        again, as if nothing had been known of it.
        """
        order = self.order()
        position = {start: i for i, start in enumerate(order)}
        before: dict[int, list[int]] = {start: [] for start in order}
        for start in order:
            for following in self.next[start]:
                before[following].append(start)
        found: dict[int, State] = {0: {_EXEC: 1}}
        left: dict[int, State] = {}
        returned: dict[int, State] = {}  # what is known of a block by all ways, those back to it included
        i, visits = 0, 0
        while i < len(order):
            start, visits = order[i], visits + 1
            if visits > self.VISITS * len(order):
                raise ValueError(f"the masks do not settle at {self.code[start]}")
            if i:
                ways = [left[each] for each in before[start] if position[each] < i]
                found[start] = dict(returned[i] if i in returned else reduce(partial(self.merge, start), ways))
            left[start] = state = dict(found[start])
            for place in self.steps[start]:
                self.step(state, place)
            i += 1
            for again in sorted(position[each] for each in self.next[start] if position[each] < i):
                merged = self.merge(order[again], found[order[again]], state)
                if merged != found[order[again]]:
                    returned = {each: known for each, known in returned.items() if each < again} | {again: merged}
                    i = again
                    break
        return found

    def order(self) -> list[int]:
        """Blocks, each after those that lead to it other than by a way back."""
        done: list[int] = []
        seen = {0}
        stack = [(0, iter(self.next[0]))]
        while stack:
            start, following = stack[-1]
            fresh = next((each for each in following if each not in seen), None)
            if fresh is None:
                done.append(start)
                stack.pop()
            else:
                seen.add(fresh)
                stack.append((fresh, iter(self.next[fresh])))
        return done[::-1]

    def merge(self, start: int, old: State, new: State) -> State:
        """What holds of both states at a block's beginning."""
        masks = self.masks
        same = {key: mask for key, mask in old.items() if new.get(key) == mask}
        if _EXEC in same or _EXEC not in old or _EXEC not in new:
            return same
        made = {key: masks.unknown((start, key)) for key in old}
        own = 0
        for mask in made.values():
            own |= masks.depends[mask]
        same = {key: mask for key, mask in same.items() if not masks.depends[mask] & own}
        wholes = {}
        for key in old.keys() & new.keys() - same.keys() - {_EXEC}:
            whole = masks.either(old[_EXEC], old[key])
            if whole == masks.either(new[_EXEC], new[key]) and not masks.depends[whole] & own:
                wholes[key] = whole
        lanes = made[_EXEC]
        for whole in wholes.values():
            lanes = masks.both(lanes, whole)
        parts = {key: masks.both(whole, masks.either(masks.without(lanes), made[key])) for key, whole in wholes.items()}
        return same | parts | {_EXEC: lanes}

    def step(self, state: State, place: int) -> None:
        instruction = self.code[place]
        name, operands = instruction.name, instruction.operands
        changes, compares = self.writes[place], name.startswith("v_cmp")
        results: State = {}
        algebra = _ALGEBRA.fullmatch(name)
        target = self.key(operands[0])
        if compares:
            lanes = self.unknown(state, (place, "lanes"))
            key = _EXEC if name.startswith("v_cmpx") else target
            results = {key: self.masks.both(self.value(state, self.exec, place), lanes)} if key is not None else {}
        elif algebra and int(algebra[3]) == self.wave and target is not None:
            results = self.algebra(state, algebra[1], bool(algebra[2]), target, place)
        for key in [key for key in state if key in changes or (self.wave == 64 and key + 1 in changes)]:
            del state[key]
        state.update(results)

    def algebra(self, state: State, kind: str, saves: bool, target: int, place: int) -> State:
        """What ``s_and_b64`` and its like write; those that save EXEC also combine it with their source."""
        sources = [*self.code[place].operands[1:], *([self.exec] if saves else [])]
        for operand in sources:  # all is forgotten that has to be before anything is read
            self.value(state, operand, place)
        masks, choice = self.masks, self.unknown(state, (place, "choice")) if kind == "cselect" else 0
        a, b = (self.value(state, operand, place) for operand in (sources[0], sources[-1]))
        if kind.endswith(("n1", "not0")):
            a = masks.without(a)
        elif kind.endswith(("n2", "not1")):
            b = masks.without(b)
        result = {
            "mov": lambda: a,
            "not": lambda: masks.without(a),
            "and": lambda: masks.both(a, b),
            "or": lambda: masks.either(a, b),
            "xor": lambda: masks.choose(a, masks.without(b), b),
            "cselect": lambda: masks.choose(choice, a, b),
        }[re.sub(r"_?n(ot)?\d$", "", kind)]()
        return {target: state[_EXEC], _EXEC: result} if saves else {target: result}

    def key(self, operand: str) -> int | None:
        """The first register of an operand that is as wide as a mask."""
        found = scalars(operand)
        return found[0] if len(found) == self.wave // 32 else None

    def unknown(self, state: State, name: object) -> int:
        """A mask of which nothing is known. What the state says of the one that this place made before is forgotten."""
        fresh = self.masks.unknown(name)
        for key in [key for key, mask in state.items() if self.masks.depends[mask] & self.masks.depends[fresh]]:
            del state[key]
        return fresh

    def value(self, state: State, operand: str, place: int) -> int:
        if operand in ("0", "-1"):
            return int(operand == "-1")
        key = self.key(operand)
        if key is None:
            return self.unknown(state, (place, operand))
        if key not in state:
            state[key] = self.unknown(state, (place, operand))
        return state[key]
