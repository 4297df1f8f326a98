"""Random legal programs over every statement, and a plain evaluation of their documents, point by point in float64.

The evaluation shares nothing with ``search.program``: it reads the JSON, takes expressions for the Python that they
look like, and loops over rows, points and trips one at a time. It is for programs that were generated here only.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Document = dict[str, Any]
Arrays = dict[str, np.ndarray]

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "max": np.maximum,
    "min": np.minimum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
FLOATING = {"sum": 0.0, "product": 1.0, "max": -np.inf, "min": np.inf}
WHOLE = {"sum": 0, "product": 1, "max": -(2**31), "min": 2**31 - 1, "and": -1, "or": 0, "xor": 0}
STRUCTURED = {
    "online_softmax": ("float32", "float32"),
    "welford": ("float32", "float32", "float32"),
    "argmax": ("float32", "int32"),
}
"""Op to the dtypes of its results."""


def _whole(value: Any) -> np.int64:
    """Towards zero; what no int32 holds becomes the smallest one, as the processor has it."""
    return np.int64(value) if abs(value) < 2**31 else np.int64(-(2**31))


FUNCTIONS: dict[str, Any] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "select": lambda condition, then, otherwise: then if condition else otherwise,
    "cast": lambda value, dtype: _whole(value) if dtype == "int32" else np.float64(value),
    "float32": "float32",
    "int32": "int32",
}


# --- programs ----------------------------------------------------------------------------------------------------


class Writer:
    """Writes one program; every choice is the given generator's."""

    def __init__(self, chance: random.Random, kinds: tuple[str, ...]) -> None:
        self.chance, self.kinds = chance, kinds
        self.scalars = ["p", "0.75", "gain"]
        self.tiles: dict[str, tuple[str, ...]] = {}
        self.elements = {"x": ("i", "j"), "w": ("j",), "v": ("i",)}
        self.unread = {"x", "w", "v", "p", "gain", "trips"}
        self.made = 0

    def fresh(self, stem: str) -> str:
        self.made += 1
        return f"{stem}{self.made}"

    def read(self, text: str) -> str:
        self.unread.discard(text)
        return text

    def atom(self, over: tuple[str, ...], more: tuple[str, ...] = ()) -> str:
        """Something of float32 that can be read in a statement over these axes."""
        choices = [*self.scalars, *more]
        choices += [name for name, axes in {**self.elements, **self.tiles}.items() if set(axes) <= set(over)] * 2
        choices += [f"cast(index({axis}), float32)" for axis in (*over, "row")]
        if "j" in over:
            choices += ["x[0, j]", "x[ni - 1, nj - 1 - j]", "w[nj - 1 - j]"]
        if "i" in over:
            choices += ["v[ni - 1 - i]", "x[i, 0]"]
        return self.read(self.chance.choice(choices))

    def value(self, over: tuple[str, ...], more: tuple[str, ...] = (), depth: int = 0) -> str:
        kind = self.chance.random()
        if depth == 3 or kind < 0.3:
            return self.atom(over, more)

        def part() -> str:
            return self.value(over, more, depth + 1)

        if kind < 0.65:
            return f"({part()} {self.chance.choice('+-*')} {part()})"
        if kind < 0.72:
            return f"({part()} / (abs({part()}) + 0.5))"
        if kind < 0.82:
            return f"{self.chance.choice(['tanh', 'sigmoid', 'abs', '-'])}({part()})"
        if kind < 0.9:
            return f"{self.chance.choice(['min', 'max'])}({part()}, {part()})"
        return f"select({self.condition(over, more)}, {part()}, {part()})"

    def condition(self, over: tuple[str, ...], more: tuple[str, ...] = ()) -> str:
        simple = f"{self.atom(over, more)} {self.chance.choice(['<', '<=', '>', '>='])} {self.atom(over, more)}"
        if "j" in over and self.chance.random() < 0.4:
            simple = f"({simple} or not index(j) < {self.chance.randint(0, 3)})"
        return simple

    def axes(self, *kept: str) -> tuple[str, ...]:
        chosen = {axis for axis in "ij" if self.chance.random() < 0.7} | set(kept)
        return tuple(self.chance.sample(sorted(chosen), len(chosen)))

    def update(self, reducer: str, array: bool, more: tuple[str, ...] = ()) -> Document:
        over = self.axes(*("i" if array else ""))
        out: Document = {"reducer": reducer, "over": list(over), "value": self.value(over, more)}
        if self.chance.random() < 0.4:
            out["where"] = self.condition(over, more)
        if array:
            place = self.chance.choice(["index(i)", "ni - 1 - index(i)", ""])
            out["index"] = [place or f"max(min(cast({self.atom(over, more)} * 2.0, int32), ni - 1), 0)"]
        return {"update": out}

    def reduction(self) -> Iterator[Document]:
        """One reducer with some update sites, perhaps in a loop, and its finalize."""
        name, into = self.fresh("r"), self.fresh("s")
        op = self.chance.choice(["sum", "sum", "max", "min"])
        array = self.chance.random() < 0.4
        opened: Document = {"name": name, "op": op}
        if array:
            opened["shape"] = ["i"]
        if self.chance.random() < 0.3:
            opened["seed"] = self.value((), depth=2)
        if self.chance.random() < 0.2:
            opened["order"] = "strict"
        yield {"reducer": opened}
        for _ in range(self.chance.randint(1, 2)):
            if self.chance.random() < 0.3:
                trip, scale = self.fresh("t"), self.fresh("c")
                body = [
                    {"let": {"name": scale, "value": f"cast({trip} + 1, float32)"}},
                    self.update(name, array, (scale, f"v[{self.chance.choice(['0', f'{trip} - {trip}'])}]")),
                ]
                # what is defined in a loop must be read in it
                body[1]["update"]["value"] += f" * {scale}"
                yield {"loop": {"count": self.read("trips"), "index": trip, "body": body}}
            else:
                yield self.update(name, array)
        yield {"finalize": {"reducer": name, "into": into}}
        if array:
            self.tiles[into] = ("i",)
        else:
            self.scalars.append(into)
        self.unread.add(into)

    def bits(self) -> Iterator[Document]:
        """A bitwise reduction of int32, read as a number."""
        name, into, number = self.fresh("r"), self.fresh("s"), self.fresh("l")
        over = self.axes("j")
        value = f"index(j) * 3 + cast({self.atom(over)} * 8.0, int32)"
        yield {"reducer": {"name": name, "op": self.chance.choice(["and", "or", "xor"]), "dtype": "int32"}}
        yield {"update": {"reducer": name, "over": list(over), "value": value}}
        yield {"finalize": {"reducer": name, "into": into}}
        yield {"let": {"name": number, "value": f"cast({into}, float32) * 0.01"}}
        self.scalars.append(number)
        self.unread.add(number)

    def structured(self) -> Document:
        """A reduction of several results, all of them read."""
        op = self.chance.choice(list(STRUCTURED))
        over = self.axes(self.chance.choice("ij"))
        value, into = self.value(over), [self.fresh("s") for _ in STRUCTURED[op]]
        for name, dtype in zip(into, STRUCTURED[op], strict=True):
            self.scalars.append(f"cast({name}, float32)" if dtype == "int32" else name)
            self.unread.add(self.scalars[-1])
        return {"reduce": {"into": into, "op": op, "over": list(over), "value": value}}

    def statements(self) -> Iterator[Document]:
        for _ in range(self.chance.randint(1, 4)):
            kind = self.chance.choice(self.kinds)
            if kind == "reduction":
                yield from self.reduction()
            elif kind == "bits":
                yield from self.bits()
            elif kind == "structured":
                yield self.structured()
            elif kind == "stage":
                yield {"stage": {}}
            elif kind == "let":
                value, name = self.value(()), self.fresh("l")
                yield {"let": {"name": name, "value": value}}
                self.scalars.append(name)
                self.unread.add(name)
            else:
                over = self.axes(self.chance.choice("ij"))
                value, name = self.value(over), self.fresh("k")
                yield {"tile": {"name": name, "over": list(over), "value": value}}
                self.tiles[name] = over
                self.unread.add(name)
        last = self.value(("i", "j"))
        yield {"store": {"tensor": "z", "over": [], "value": self.value((), depth=1)}}
        left = [f"cast({name}, float32)" if name == "trips" else name for name in sorted(self.unread)]
        yield {"store": {"tensor": "y", "over": ["i", "j"], "value": " + ".join([last, *left])}}


KINDS = ("reduction", "reduction", "let", "tile", "stage", "bits")


def random_program(chance: random.Random, kinds: tuple[str, ...] = KINDS) -> Document:
    """A legal program over rows, i and j, of statements of these kinds, that reads everything it declares."""
    x_axes, y_axes = (chance.sample(["row", "i", "j"], 3) for _ in range(2))
    # subscripts name one per column axis, in the tensor's own order
    swapped = x_axes.index("j") < x_axes.index("i")
    body = list(Writer(chance, kinds).statements())
    document = {
        "name": "random",
        "params": {"p": 0.25, "trips": 2},
        "dims": ["rows", "ni", "nj"],
        "axes": {
            "row": {"dim": "rows", "kind": "row"},
            "i": {"dim": "ni", "kind": "column"},
            "j": {"dim": "nj", "kind": "column"},
        },
        "tensors": {
            "x": {"axes": x_axes, "role": "input"},
            "w": {"axes": ["j"], "role": "input"},
            "v": {"axes": ["row", "i"], "role": "input"},
            "gain": {"axes": ["row"], "role": "input"},
            "y": {"axes": y_axes, "role": "output"},
            "z": {"axes": ["row"], "role": "output"},
        },
        "body": body,
    }
    return _with_swapped_subscripts(document) if swapped else document


def _with_swapped_subscripts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_swapped_subscripts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_swapped_subscripts(inner) for inner in value]
    if isinstance(value, str):
        for text in ("0, j", "ni - 1, nj - 1 - j", "i, 0"):
            first, second = text.split(", ")
            value = value.replace(f"x[{text}]", f"x[{second}, {first}]")
    return value


# --- what they mean ----------------------------------------------------------------------------------------------


class Elements:
    """A tensor at one row: ``x[i, j]`` by its column axes; its own element is read by ``here``."""

    def __init__(self, values: np.ndarray, axes: list[str], row: int) -> None:
        self.values = values[tuple(row if axis == "row" else slice(None) for axis in axes)]
        self.axes = [axis for axis in axes if axis != "row"]

    def __getitem__(self, places: Any) -> Any:
        return self.values[places]

    def here(self, point: dict[str, int]) -> Any:
        return self.values[tuple(point[axis] for axis in self.axes)]


class Evaluation:
    """One row of a program."""

    def __init__(
        self, document: Document, dims: dict[str, int], params: dict[str, Any], inputs: Arrays, row: int
    ) -> None:
        self.document, self.row = document, row
        self.extents = {axis: dims[entry["dim"]] for axis, entry in document["axes"].items()}
        self.names: dict[str, Any] = {name: np.int64(extent) for name, extent in dims.items()}
        self.names |= {n: np.int64(v) if isinstance(v, int) else np.float64(np.float32(v)) for n, v in params.items()}
        axes = {name: tensor["axes"] for name, tensor in document["tensors"].items()}
        self.elements = {name: Elements(values, axes[name], row) for name, values in inputs.items()}
        self.tiles: dict[str, tuple[tuple[str, ...], dict[tuple[int, ...], Any]]] = {}
        self.reducers: dict[str, tuple[Document, dict[tuple[int, ...], Any]]] = {}
        self.written: dict[str, dict[tuple[int, ...], Any]] = {}

    def points(self, over: list[str]) -> Iterator[dict[str, int]]:
        for place in itertools.product(*(range(self.extents[axis]) for axis in over)):
            yield dict(zip(over, place, strict=True))

    def value(self, text: str, point: dict[str, int]) -> Any:
        scope = {**FUNCTIONS, **self.names, **point}
        for name, found in self.elements.items():
            readable = set(found.axes) <= set(point) and f"{name}[" not in text
            scope[name] = found.here(point) if readable else found
        for name, (axes, values) in self.tiles.items():
            if set(axes) <= set(point):
                scope[name] = values[tuple(point[axis] for axis in axes)]
        scope["index"] = lambda at: np.int64(at)
        scope["row"] = self.row
        return eval(
            _bare(text, self.elements),
            {"__builtins__": {}},
            {**scope, "here": lambda name: self.elements[name].here(point)},
        )

    def run(self, body: list[Document]) -> None:
        for statement in body:
            ((kind, what),) = statement.items()
            if kind == "let":
                self.names[what["name"]] = self.value(what["value"], {})
            elif kind == "tile":
                values = {tuple(p.values()): self.value(what["value"], p) for p in self.points(what["over"])}
                self.tiles[what["name"]] = (tuple(what["over"]), values)
            elif kind == "reducer":
                start = WHOLE[what["op"]] if what.get("dtype") == "int32" else FLOATING[what["op"]]
                places = itertools.product(*(range(self.extents[axis]) for axis in what.get("shape", [])))
                self.reducers[what["name"]] = (what, dict.fromkeys(places, start))
            elif kind == "update":
                self.update(what)
            elif kind == "finalize":
                self.finalize(what)
            elif kind == "reduce":
                values = np.array([self.value(what["value"], p) for p in self.points(what["over"])])
                self.names |= zip(what["into"], _several(what["op"], values), strict=True)
            elif kind == "loop":
                for trip in range(int(self.names[what["count"]])):
                    self.names[what["index"]] = np.int64(trip)
                    self.run(what["body"])
            elif kind == "store":
                axes = [axis for axis in self.document["tensors"][what["tensor"]]["axes"] if axis != "row"]
                values = {
                    tuple(p[axis] for axis in axes): self.value(what["value"], p) for p in self.points(what["over"])
                }
                self.written[what["tensor"]] = values

    def update(self, what: Document) -> None:
        reducer, held = self.reducers[what["reducer"]]
        for point in self.points(what["over"]):
            if "where" in what and not self.value(what["where"], point):
                continue
            place = tuple(int(self.value(index, point)) for index in what.get("index", []))
            held[place] = OPS[reducer["op"]](held[place], self.value(what["value"], point))

    def finalize(self, what: Document) -> None:
        reducer, held = self.reducers[what["reducer"]]
        if "seed" in reducer:
            seed = self.value(reducer["seed"], {})
            held = {place: OPS[reducer["op"]](seed, value) for place, value in held.items()}
        if reducer.get("shape"):
            self.tiles[what["into"]] = (tuple(reducer["shape"]), held)
        else:
            self.names[what["into"]] = held[()]


def _several(op: str, values: np.ndarray) -> tuple[Any, ...]:
    """What a structured op of some finite values delivers, by its definition."""
    if op == "online_softmax":
        return values.max(), np.exp(values - values.max()).sum()
    if op == "welford":
        return np.float64(len(values)), values.mean(), ((values - values.mean()) ** 2).sum()
    return values.max(), np.int64(values.argmax())


def _bare(text: str, elements: dict[str, Elements]) -> str:
    """A tensor's name without brackets becomes ``here(name)``: Python has one meaning for both."""
    out, at = "", 0
    while at < len(text):
        if text[at].isalpha():
            end = at
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            word = text[at:end]
            out += f"here({word!r})" if word in elements and text[end : end + 1] != "[" else word
            at = end
        else:
            out += text[at]
            at += 1
    return out


def evaluate_by_hand(document: Document, dims: dict[str, int], params: dict[str, Any], inputs: Arrays) -> Arrays:
    """Every output in float64, from inputs in float64."""
    outputs: Arrays = {}
    for name, tensor in document["tensors"].items():
        if tensor["role"] == "output":
            shape = [dims[document["axes"][axis]["dim"]] for axis in tensor["axes"]]
            outputs[name] = np.full(shape, np.nan)
    with np.errstate(all="ignore"):
        for row in range(dims["rows"]):
            evaluation = Evaluation(document, dims, params, inputs, row)
            evaluation.run(document["body"])
            for name, values in evaluation.written.items():
                axes = document["tensors"][name]["axes"]
                at = outputs[name][tuple(row if axis == "row" else slice(None) for axis in axes)]
                for place, value in values.items():
                    if place:
                        at[place] = value
                    else:
                        outputs[name][row] = value
    return outputs
