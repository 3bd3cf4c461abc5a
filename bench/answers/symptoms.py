"""Names of tests and error messages, as they differ from run to run and from backend to backend.

A symptom is one failing test with the text of its error. Everything in the text that a second run would show otherwise
(numbers, addresses, paths, devices) is drawn anew for each message.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

_TEXTS = (
    "AssertionError: Tensor-likes are not close!\n\nMismatched elements: <n> / <n> (<float>%)\nGreatest: <sci> at (<n>, <n>)",
    "NotImplementedError: Could not run 'aten::{op}' with arguments from the '<device>' backend.",
    "RuntimeError: {op}: expected scalar type Float but found Half at <path>:<n>",
    "IndexError: index <n> is out of bounds for dimension <n> with size <n> in {op}",
    "TypeError: {op}() got an unexpected keyword argument 'memory_format' (object at <hex>)",
    "RuntimeError: shape '[<n>, <n>, <n>]' is invalid for input of size <n>",
    "torch._dynamo.exc.Unsupported: call_function {op} in <path>, line <n>",
    "ValueError: {op} received <n> tensors, stream <hex>, expected at most <n>",
    "AttributeError: 'Tensor' object has no attribute '{op}_'",
    "RuntimeError: {op} failed with internal error <hex> on <device>:<n> after <float> ms",
    "ImportError: cannot import name '{op}' from partially initialized module 'torch.<device>' (<path>)",
    "KeyError: '{op}.default' while lowering graph <uuid>",
    "AssertionError: {op} took <float> s, at most <float> s are allowed",
    "RuntimeError: Trying to backward through {op} a second time, node <hex>, thread <n>",
    "OverflowError: {op} overflows: <n> cannot be stored in int32 at <path>:<n>",
    "torch._inductor.exc.LoweringException: {op} has no lowering, kernel <hex>, target: aten.{op}.default",
    "RuntimeError: {op} is not deterministic: checksum <hex> against <hex>",
    "ZeroDivisionError: division by zero in {op} with block (<n>, <n>)",
    "AssertionError: Scalars are not equal! {op} expected <n> but got <n>",
    "RuntimeError: storage of size <n> is too small for {op}, allocated at <hex>",
    "UnicodeDecodeError: 'utf-8' codec can't decode byte <hex> in position <n> while {op} reads <path>",
    "RecursionError: maximum recursion depth exceeded while {op} compares <hex>",
    "RuntimeError: {op} expects contiguous input, strides [<n>, <n>, <n>]",
    "AssertionError: {op} leaked <n> bytes on device <n>, process <n>",
)
_INFRASTRUCTURE_TEXTS = (
    "OSError: [Errno 28] No space left on device: '<path>'",
    "RuntimeError: <device> driver initialization failed, error <n>; process <n>",
    "ConnectionResetError: [Errno 104] Connection reset by peer <ip>",
    "RuntimeError: device <device>:<n> is lost, last heartbeat at <time>",
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='<ip>', port=<n>): Read timed out.",
)
_OPS = ("add", "softmax", "conv2d", "index_put", "layer_norm", "matmul", "gather", "cumsum", "topk", "roll", "unfold",
        "logsumexp", "embedding", "bincount", "scatter", "einsum", "hypot", "renorm", "trace", "kron")  # fmt: skip
_KINDS = (
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "complex64",
    "empty",
    "large",
    "backward",
    "inplace",
    "out",
)
_FILES = ("test/test_ops.py", "test/test_nn.py", "test/test_autograd.py", "test/inductor/test_kernels.py")
DEVICES = ("NPU", "XPU", "HPU", "MTIA", "TPU", "MUSA", "MLU", "IPU", "VPU", "GCU")

_VARYING: dict[str, Callable[[random.Random], str]] = {
    "n": lambda rng: str(rng.randint(1, 70_000)),
    "float": lambda rng: f"{rng.uniform(0.01, 99):.2f}",
    "sci": lambda rng: f"{rng.uniform(1, 9.9):.6f}e-0{rng.randint(1, 6)}",
    "hex": lambda rng: f"0x{rng.getrandbits(48):012x}",
    "uuid": lambda rng: (
        f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-4{rng.getrandbits(12):03x}-"
        f"a{rng.getrandbits(12):03x}-{rng.getrandbits(48):012x}"
    ),
    "ip": lambda rng: (
        f"10.{rng.randint(0, 255)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}:{rng.randint(1024, 65000)}"
    ),
    "time": lambda rng: (
        f"2026-01-{rng.randint(1, 28):02d}T{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:00Z"
    ),
    "path": lambda rng: (
        f"/{rng.choice(('home/ci', 'tmp/runner', 'var/lib/actions'))}/_work-{rng.getrandbits(24):06x}/"
        f"torch/{rng.choice(('ops', 'nn', 'utils'))}/kernel.py"
    ),
}
_HOLE = re.compile(r"<(\w+)>")


@dataclass(frozen=True, slots=True)
class Symptom:
    test: str
    file: str
    text: str

    def write_message(self, device: str, rng: random.Random) -> str:
        def fill(hole: re.Match[str]) -> str:
            return device if hole[1] == "device" else _VARYING[hole[1]](rng)

        return _HOLE.sub(fill, self.text)


class SymptomBook:
    """Deals out symptoms so that no two causes of one history have a test or a text in common."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._texts = rng.sample(_TEXTS, len(_TEXTS))
        self._infrastructure_texts = rng.sample(_INFRASTRUCTURE_TEXTS, len(_INFRASTRUCTURE_TEXTS))
        self._tests = [f"test_{op}_{kind}" for op in _OPS for kind in _KINDS]
        rng.shuffle(self._tests)

    def take(self, number: int) -> tuple[Symptom, ...]:
        """Symptoms of one cause: tests of one operator fail with the same text, or each with its own."""
        shared = self._text() if number > 3 or self._rng.random() < 0.6 else None
        return tuple(self._symptom(shared or self._text()) for _ in range(number))

    def take_infrastructure(self, number: int) -> tuple[Symptom, ...]:
        text = self._infrastructure_texts.pop()
        return tuple(self._symptom(text) for _ in range(number))

    def other_text(self, symptom: Symptom) -> Symptom:
        """The same test, failing in another way."""
        return Symptom(symptom.test, symptom.file, self._text())

    def _text(self) -> str:
        return self._texts.pop().replace("{op}", self._rng.choice(_OPS))

    def _symptom(self, text: str) -> Symptom:
        return Symptom(self._tests.pop(), self._rng.choice(_FILES), text)
