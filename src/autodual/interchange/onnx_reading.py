"""ad.load_onnx: an ONNX file as an ordinary module, compared with what the file itself computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import Shape, full_precision
from autodual.interchange import operators_arithmetic, operators_images, operators_shapes  # noqa: F401  # they fill READERS
from autodual.interchange.conversion import FAILURES, READERS, Part, Value, Wiring, convert, node_label, run_node
from autodual.interchange.onnx_file import OnnxFile, first_line, onnx_package, read_onnx

OPERATORS = tuple(sorted(READERS))
"""Operators that are read where they depend on the input."""
TOLERANCE = 1e-5
"""How far the module's output may be from the file's, as a part of the output's largest entry."""
COMPARED, FAR = 2, 10.0
"""Random inputs of each kind on which module and file are compared, and how much larger the largest kind is."""


class OnnxNetwork(nn.Module):
    """What an ONNX file computes, for a batch of examples: its operators as modules, called in the order of the file."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__()
        self.input_shape = wiring.input_shape
        self.entrance, self.exit = wiring.entrance, wiring.exit
        self.steps = nn.ModuleDict({name: step.module for name, step in wiring.steps})
        last = {operand: name for name, step in wiring.steps for operand in step.operands}
        self.calls = tuple(
            (
                name,
                step.operands,
                step.result,
                tuple(o for o in set(step.operands) if last[o] == name and o != wiring.exit),
            )
            for name, step in wiring.steps
        )

    def forward(self, x: Tensor) -> Tensor:
        tensors = {self.entrance: x}
        for name, operands, result, done in self.calls:
            tensors[result] = self.steps[name](*(tensors[operand] for operand in operands))
            for operand in done:
                del tensors[operand]
        return tensors[self.exit]

    def extra_repr(self) -> str:
        return f"input_shape={self.input_shape}"


def load_onnx(path: Path | str) -> nn.Module:
    """Load an ONNX file as an ordinary nn.Module, ready for certify(), attack(), bounds() and the like.

    The module, and every node by itself, is compared with the file on random inputs by the reference implementation of the `onnx`
    package, and refused if outputs differ by more than 1e-5 of the largest. Nothing in the file is executed, and no other file is
    opened. The file is one function of one example: a fixed batch of 1, or none at all, becomes a batch of any size in front.

    Args:
        path: The file: one input, one output, weights inside. Needs `pip install 'autodual[onnx]'`.

    Returns:
        A module in evaluation mode and in the precision of the file (float32 in nearly all), which maps [N, *shape] to
        [N, *output shape]; its attribute `input_shape` is the shape of one example.

    Raises:
        ArgumentError: The file cannot be read, is no ONNX file, was cut short, keeps weights elsewhere, has several inputs or outputs,
            or computes something else than the module.
        UnsupportedOperationError: An operator is unknown, or is used in a way that is not supported; the message names its node.

    Examples:
        >>> import autodual as ad
        >>> model = ad.load_onnx("network.onnx")  # doctest: +SKIP
        >>> ad.certify(model, images, labels, ad.LinfBall(0.1))  # doctest: +SKIP
    """
    return load_file(read_onnx(path))


def load_file(file: OnnxFile) -> OnnxNetwork:
    """The module of a file that has been read, compared with the file."""
    wiring = convert(file)
    network = OnnxNetwork(wiring).eval()
    _check_against_file(network, file)
    for part in wiring.parts:
        _check_node(part, file)
    return network


class Reference:
    """What the file itself computes, example by example, by the reference implementation of the `onnx` package."""

    def __init__(self, file: OnnxFile) -> None:
        self._file = file
        self._evaluator = onnx_package().reference.ReferenceEvaluator(file.model)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, *input_shape] -> [N, outputs]."""
        rows = [self.as_given(example.reshape(self._file.input_shape)) for example in x.detach().cpu()]
        return torch.stack([row.reshape(-1) for row in rows])

    def as_given(self, x: Tensor) -> Tensor:
        """The output for an input of the shape that the file wants."""
        return self.tensors(x, [self._file.output])[0]

    def tensors(self, x: Tensor, names: list[str]) -> list[Tensor]:
        """What the file computes on its way, for an input of the shape that it wants."""
        with np.errstate(all="ignore"):
            found = self._evaluator.run(names, {self._file.input: x.numpy()})
        return [torch.from_numpy(np.array(value)) for value in found]


def _check_against_file(network: OnnxNetwork, file: OnnxFile) -> None:
    """Refuse a module that computes something else than its file, on inputs of the usual size and on larger ones."""
    usual, far = _random_inputs(network.input_shape, file.dtype)
    expected = _compared(network, file, usual)
    if not bool(expected.isfinite().all()):
        raise ArgumentError(f"{file.path}: its output holds NaN or infinite values, so nothing can be proved about it")
    _compared(network, file, far)
    _check_examples_apart(file, usual, expected)


def _compared(network: OnnxNetwork, file: OnnxFile, x: Tensor) -> Tensor:
    """What the file computes, which the module must compute, too, where it is finite."""
    try:
        expected = Reference(file)(x)
        with full_precision(), torch.no_grad():
            found = network(x).flatten(1)
    except FAILURES as error:
        raise ArgumentError(
            f"{file.path}: cannot be compared with onnx's reference, and is refused: {type(error).__name__}: {first_line(error)}"
        ) from None
    if found.shape != expected.shape:
        raise ArgumentError(
            f"{file.path}: the module makes {list(found.shape[1:])} numbers, but the file {list(expected.shape[1:])}: it is "
            f"refused{_where(network, file, x)}"
        )
    if not expected.is_floating_point():
        raise ArgumentError(
            f"{file.path}: its output holds {expected.dtype} values, and only floating-point ones can be bounded"
        )
    finite = expected.isfinite().all(1)
    if bool(finite.any()):
        apart = _apart(found[finite], expected[finite])
        if not apart <= TOLERANCE:
            raise ArgumentError(
                f"{file.path}: the module's output differs from the file's by {apart:.1g} of its largest entry on random inputs, more "
                f"than {TOLERANCE:g}: it is refused{_where(network, file, x)}"
            )
    return expected


def _apart(found: Tensor, expected: Tensor) -> float:
    scale = expected.abs().amax().clamp(min=torch.finfo(expected.dtype).tiny)
    return ((found - expected).abs().amax() / scale).item()


def _where(network: OnnxNetwork, file: OnnxFile, x: Tensor) -> str:
    """The first node whose result differs, and what to do about it."""
    nodes, tensors = file.model.graph.node, {network.entrance: x[:1]}
    last = dict[int, str]()  # what the last step of every node makes
    try:
        with full_precision(), torch.no_grad():
            for name, operands, result, _ in network.calls:
                tensors[result] = network.steps[name](*(tensors[operand] for operand in operands))
                if name != "Output":
                    last[int(name.split("_")[1])] = result
        expected = Reference(file).tensors(x[0].reshape(file.input_shape), [nodes[i].output[0] for i in last])
    except FAILURES:
        return ""
    for (index, result), wanted in zip(last.items(), expected, strict=True):
        own = tensors[result].flatten()
        if own.numel() != wanted.numel() or not _apart(own, wanted.flatten()) <= TOLERANCE:
            return f". The first node that differs is {node_label(nodes[index], index)}; write it with other settings, or not at all"
    return ""


def _check_node(part: Part, file: OnnxFile) -> None:
    """Refuse a node whose modules compute something else than the node by itself, on inputs of the usual size and on larger ones.

    The whole network may not show it: on inputs between 0 and 1, a network for pixels up to 255 has all its ReLUs at zero.
    """
    values = {name: known for name, known in part.inputs.items() if isinstance(known, Value)}
    read = {operand for step in part.steps for operand in step.operands}
    if part.steps and not read >= {value.name for value in values.values()}:
        return  # one of its inputs is itself made of the other, as in SiLU
    generator = torch.Generator().manual_seed(0)
    for size in (1.0, FAR):
        drawn = {n: size * torch.randn(v.shape, generator=generator).to(file.dtype) for n, v in values.items()}
        given = {n: drawn[n].numpy() if n in drawn else known for n, known in part.inputs.items()}
        tensors = {v.name: drawn[n].reshape(1, *v.per_example) for n, v in values.items()}
        try:
            expected = run_node(part.proto, given, file)
            with full_precision(), torch.no_grad():
                for step in part.steps:
                    tensors[step.result] = step.module(*(tensors[operand] for operand in step.operands))
        except FAILURES as error:
            raise ArgumentError(
                f"{file.path}: {part.label}: cannot be compared with onnx's reference, and is refused: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from None
        for name, wanted in zip((n for n in part.proto.output if n), map(np.asarray, expected), strict=True):
            made = part.outputs.get(name)
            if isinstance(made, Value) and not _alike(tensors[made.name].reshape(made.shape), wanted):
                raise ArgumentError(
                    f"{file.path}: {part.label}: its module computes something else than the node on random inputs, and is "
                    f"refused; write it with other settings, or not at all"
                )


def _alike(found: Tensor, wanted: np.ndarray) -> bool:
    """Whether a module's result is a node's, where that is finite: what the reference cannot compute shows no difference."""
    expected = torch.from_numpy(np.array(wanted))
    if found.shape != expected.shape or not expected.is_floating_point():
        return False
    finite = expected.isfinite()
    return not bool(finite.any()) or _apart(found[finite], expected[finite]) <= TOLERANCE


def _check_examples_apart(file: OnnxFile, x: Tensor, expected: Tensor) -> None:
    """Refuse a file for batches of any size that mixes examples. One that takes a single example after all is left alone."""
    if not file.any_batch:
        return
    try:
        together = Reference(file).as_given(x.reshape(len(x), *file.input_shape[1:]))
    except FAILURES:
        return
    if together.shape[:1] != x.shape[:1] or together.numel() != expected.numel():
        return
    if not torch.allclose(
        together.reshape(expected.shape), expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item()
    ):
        raise ArgumentError(
            f"{file.path}: gives an example another output beside others in a batch; certificates need one function per example"
        )


def _random_inputs(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and inputs around zero; and inputs so large that activations saturate and clips are reached."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(COMPARED, *shape, generator=generator)
    around, far = (torch.randn(COMPARED, *shape, generator=generator) for _ in range(2))
    return torch.cat([images, around]).to(dtype), (FAR * far).to(dtype)
