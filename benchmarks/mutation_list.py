"""Mistakes that the fast tests must notice, one line of src/ each.

A mutation replaces a text that occurs exactly once in its file. It names the tests that should fail, which are tried first.
Every room of src/autodual has some, apart from `reproduce` and `speed`; `kernels` only in what a CPU runs, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One mistake: in this file of src/autodual, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Below tests/: files, or tests of a file after two colons."""

    def applied(self, source: str) -> str:
        """The file's text with the mistake in it. A text that occurs never, or twice, is a stale mutation: an error."""
        found = source.count(self.old)
        if found != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.file} holds {self.old!r} {found} times, not once: renew the mutation")
        return source.replace(self.old, self.new)


def mutation(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, file, old, new, tests)


# fmt: off

GRAPH = [
    mutation(
        "what is stored of the first batch is not noticed", "graph/record.py",
        "        check_same(tracer.calls, fresh.calls)\n", "        pass\n",
        "graph/test_made_alike.py",
    ),
    mutation(
        "operators of somebody else's are told by their names", "graph/calls.py",
        "any(function is maker for maker in _MAKERS)",
        "any(getattr(function, '__name__', '') == maker.__name__ for maker in _MAKERS)",
        "graph/test_made_alike.py",
    ),
    mutation(
        "what is made alike may lie otherwise", "graph/calls.py",
        '_CIRCUMSTANCES = _ALIKE | names(', '_CIRCUMSTANCES = names(',
        "graph/test_made_alike.py",
    ),
    mutation(
        "digest ignores the values of tensors", "graph/digest.py",
        "self._sha.update(values.view(torch.uint8).numpy().data)", "self._sha.update(b'')",
        "graph/test_digest.py",
    ),
    mutation(
        "digest ignores the settings of modules", "graph/digest.py",
        "sorted(settings, key=_first), sorted(tensors, key=_first)", "sorted(tensors, key=_first)",
        "graph/test_digest.py",
    ),
    mutation(
        "batch size taken for a constant", "graph/record.py",
        "CAPTURE_BATCH, OTHER_BATCH = 13, 2", "CAPTURE_BATCH, OTHER_BATCH = 13, 13",
        "graph/test_second_run.py", "graph/test_batch_mixing.py",
    ),
    mutation(
        "second run not compared", "graph/record.py",
        "    how = _difference(first, second)\n", "    how = None\n",
        "graph/test_second_run.py", "graph/test_batch_mixing.py",
    ),
    mutation(
        "constants of the second run not compared", "graph/record.py",
        "return b.stays and _same_tensor(a.tensor, b.tensor, batches, computed=False)", "return True",
        "graph/test_second_run.py", "graph/test_circumstances.py",
    ),
    mutation(
        "constant of the first example taken for all", "graph/registry.py",
        "bool((rows == rows[:1]).all())", "True",
        "graph/test_batch_mixing.py::test_a_builder_gets_no_constant_that_differs_between_examples",
    ),
    mutation(
        "operations across the batch allowed", "graph/registry.py",
        "if dim % rank == 0:", "if dim == 0 and rank == 0:",
        "graph/test_batch_mixing.py",
    ),
    mutation(
        "old weight_norm left as the last run left it", "graph/network.py",
        "        hook(private, ())\n", "        hook.name\n",
        "graph/test_parametrizations.py", "graph/test_live_parameters.py",
    ),
    mutation(
        "stale graph of a changed model", "graph/digest.py",
        "return self._complete and other._complete and self._entries == other._entries", "return True",
        "graph/test_changes.py", "graph/test_live_parameters.py",
    ),
    mutation(
        "a refusal that the model catches is forgotten", "graph/calls.py",
        "self.refusal = self.refusal or error", "self.refusal = None",
        "graph/test_swallowed_refusals.py",
    ),
    mutation(
        "a module that forward changes is bounded as it was", "graph/twins.py",
        "            if not _equal(now, kept):\n", "            if False:\n",
        "graph/test_changed_modules.py",
    ),
    mutation(
        "hooks of a registered module ignored", "graph/registry.py",
        "if target._forward_hooks or len(", "if len(",
        "graph/test_hooks.py",
    ),
]

SETS = [
    mutation(
        "dual norm of the wrong norm (l1)", "sets/balls.py",
        "    norm = L1\n", "    norm = L2\n",
        "sets/test_minimise.py", "sets/test_eps.py",
    ),
    mutation(
        "dual norm of the wrong norm (l2)", "sets/balls.py",
        "    norm = L2\n", "    norm = L1\n",
        "sets/test_minimise.py", "sets/test_eps.py",
    ),
    mutation(
        "dropped clip", "sets/balls.py",
        "lower, upper = (x - eps).clamp(*ends), (x + eps).clamp(*ends)", "lower, upper = x - eps, x + eps",
        "sets/test_eps.py::test_clipping_never_leaves_the_range",
    ),
    mutation(
        "eps rounded down", "sets/balls.py",
        "    return cast + torch.where(cast.detach().to(eps) < eps.detach(), up - cast, 0.0).detach()\n", "    return cast\n",
        "sets/test_eps.py::test_a_size_that_float32_does_not_hold_is_rounded_up",
    ),
    mutation(
        "attack outside the ball", "sets/input_sets.py",
        "return self.project(torch.addcmul(x, self.radius, direction.sign(), value=size))",
        "return torch.addcmul(x, self.radius, direction.sign(), value=size)",
        "sets/test_within.py", "certificates/test_attack.py",
    ),
    mutation(
        "attacked set rounded outwards", "sets/balls.py",
        "lower, turned = rounded_up(ends, x.dtype)", "lower, turned = -rounded_up(-ends, x.dtype)",
        "sets/test_within.py",
    ),
    mutation(
        "box rounded inwards", "sets/input_sets.py",
        "radius + (wide - radius).detach(), Interval(lower, upper)", "radius, Interval(lower, upper)",
        "sets/test_ends.py",
    ),
    mutation(
        "examples of a box in float64 not those asked for", "sets/input_sets.py",
        "box.known_as(lambda: self.double()[examples])", "box.known_as(lambda: self.double())",
        "sets/test_parts.py",
    ),
]

DUAL = [
    mutation(
        "wrong sign of the middle of ReLU's band", "kernels/chord.py",
        "return slope, slope * negative * -0.5", "return slope, slope * negative * 0.5",
        "dual/test_every_layer.py::test_keeps_its_contract[relu]",
    ),
    mutation(
        "ReLU's slope of an unstable unit is 1", "kernels/chord.py",
        "    slope = positive / (width + (1 - width.sign()))  #", "    slope = positive.sign()  #",
        "dual/test_every_layer.py::test_keeps_its_contract[relu]",
    ),
    mutation(
        "ReLU's lower line with the larger area", "dual/piecewise.py",
        "lower_slope = (z.upper + z.lower > 0).to(slope)", "lower_slope = (z.upper + z.lower < 0).to(slope)",
        "dual/test_every_layer.py::test_keeps_its_contract[relu]",
    ),
    mutation(
        "kink of LeakyReLU forgotten", "dual/piecewise.py",
        "kink = torch.where((z.lower < 0) & (z.upper > 0), torch.zeros_like(first), first)", "kink = first",
        "dual/test_every_layer.py::test_keeps_its_contract[leaky_relu]",
    ),
    mutation(
        "upper kink of a clip forgotten", "dual/piecewise.py",
        "for kink in (self.low, self.high)", "for kink in (self.low,)",
        "dual/test_every_layer.py::test_keeps_its_contract[relu6]",
    ),
    mutation(
        "lost bias of a linear layer", "dual/arithmetic.py",
        "        return self.bias_vector\n", "        return None\n",
        "dual/test_every_layer.py::test_keeps_its_contract[linear]",
    ),
    mutation(
        "transposed convolution without output padding", "dual/conv.py",
        "return DualConvTranspose(weight, bias, stride, padding, extra, parameter",
        "return DualConvTranspose(weight, bias, stride, padding, (0,) * len(stride), parameter",
        "dual/test_every_layer.py::test_keeps_its_contract[conv_transpose1d strided]",
    ),
    mutation(
        "uneven 'same' padding at the wrong side", "dual/conv.py",
        "pads += [total // 2, total - total // 2]", "pads += [total - total // 2, total // 2]",
        "dual/test_every_layer.py::test_keeps_its_contract[F.conv2d same]",
    ),
    mutation(
        "batch norm shifts by a mean without gamma", "dual/arithmetic.py",
        "shift = -mean * slope if bias is None else bias - mean * slope", "shift = -mean * slope if bias is None else bias - mean",
        "dual/test_every_layer.py::test_keeps_its_contract[batch_norm1d]",
    ),
    mutation(
        "rsub of two tensors the other way round", "dual/arithmetic.py",
        "return DualSum(swapped.weights[::-1])", "return DualSum(swapped.weights)",
        "dual/test_every_layer.py::test_keeps_its_contract[rsub of two]",
    ),
    mutation(
        "max instead of min", "dual/normalising.py",
        "return input - torch.relu(input - other)", "return input + torch.relu(other - input)",
        "dual/test_every_layer.py::test_keeps_its_contract[minimum]",
    ),
    mutation(
        "adaptive pooling with windows cut short", "dual/conv.py",
        "range(out * size // count, -(-(out + 1) * size // count))",
        "range(out * size // count, max(out * size // count + 1, (out + 1) * size // count))",
        "dual/test_every_layer.py::test_keeps_its_contract[adaptive_max_pool1d, uneven]",
    ),
    mutation(
        "intercepts of curves moved inwards", "dual/curved.py",
        "return errors.amin(0) - slack, errors.amax(0) + slack", "return errors.amin(0) + slack, errors.amax(0) - slack",
        "dual/test_huge_intervals.py",
    ),
    mutation(
        "wrong derivative of tanh", "dual/smooth.py",
        "return 4 * (2 * z).sigmoid() * (-2 * z).sigmoid()  #", "return 2 * (2 * z).sigmoid() * (-2 * z).sigmoid()  #",
        "dual/test_every_layer.py::test_keeps_its_contract[tanh]",
    ),
    mutation(
        "error of folded constants ignored", "dual/arithmetic.py",
        "return self._folding_error(FOLDING, operands[0].dtype, operands[0])", "return None",
        "dual/test_folded_constants.py",
    ),
    mutation(
        "radius of a product times 0.1", "dual/products.py",
        "self.value(_away(z, slope)))", "0.1 * self.value(_away(z, slope)))",
        "dual/test_every_layer.py::test_keeps_its_contract[times another]",
    ),
    mutation(
        "wrong sign of the middle of a product", "dual/products.py",
        "return Band(slope, -self.value(slope), ", "return Band(slope, self.value(slope), ",
        "dual/test_every_layer.py::test_keeps_its_contract[times another]",
    ),
    mutation(
        "only the first factor moves", "dual/products.py",
        "moved = self.product(x, c_y) + self.product(c_x, y)", "moved = self.product(x, c_y)",
        "dual/test_every_layer.py::test_keeps_its_contract[matrix product]",
    ),
    mutation(
        "image of a product from two corners of four", "dual/products.py",
        "for a in (x.lower, x.upper) for b in (y.lower, y.upper)]", "for a, b in ((x.lower, y.lower), (x.upper, y.upper))]",
        "dual/test_every_layer.py::test_keeps_its_contract[times another]",
    ),
    mutation(
        "product of the radii lost from an image", "dual/products.py",
        "radius = self.product(x.centre.abs() + x.radius, y.radius)", "radius = self.product(x.centre.abs(), y.radius)",
        "dual/test_every_layer.py::test_keeps_its_contract[matrix product]",
    ),
    mutation(
        "factors outside their intervals forgotten", "dual/products.py",
        "found.append(self.product(o_x, r_y + o_y) + self.product(r_x, o_y))", "found.append(self.product(o_x, r_y + o_y))",
        "dual/test_every_layer.py::test_keeps_its_contract[times another]",
    ),
    mutation(
        "rounding of a product ignored", "dual/products.py",
        "return grain * (1 + self.counts[0] / 8)", "return 0 * grain * (1 + self.counts[0] / 8)",
        "dual/test_every_layer.py::test_keeps_its_contract[matrix product per head]",
    ),
    mutation(
        "normalised values limited too tightly", "dual/products.py",
        "most = self.limit * (1 + 4", "most = 0.8 * self.limit * (1 + 4",
        "dual/test_odd_parameters.py::test_bounds_hold_or_the_call_is_refused[power_above by a rewrite]",
    ),
    mutation(
        "gradients of the factors exchanged", "dual/products.py",
        "return coefficients * y, coefficients * x", "return coefficients * x, coefficients * y",
        "dual/test_every_layer.py::test_keeps_its_contract[times another]",
    ),
    mutation(
        "scores subtracted the other way round", "dual/attention.py",
        "return x.unsqueeze(dim) - x.unsqueeze(dim + 1)", "return x.unsqueeze(dim + 1) - x.unsqueeze(dim)",
        "dual/test_every_layer.py::test_keeps_its_contract[softmax]",
    ),
    mutation(
        "wrong sign on the way back through differences", "dual/attention.py",
        "return (others.sum(self.dim + 1) - others.sum(self.dim + 2),)",
        "return (others.sum(self.dim + 2) - others.sum(self.dim + 1),)",
        "dual/test_every_layer.py::test_keeps_its_contract[softmax]",
    ),
    mutation(
        "masked scores count as zero", "dual/attention.py",
        "(torch.exp(apart * pairs) * pairs).sum(dim + 1)", "torch.exp(apart * pairs).sum(dim + 1)",
        "dual/test_every_layer.py::test_keeps_its_contract[masked softmax]",
    ),
    mutation(
        "a finite score taken for a mask", "dual/attention.py",
        "if not bool((torch.as_tensor(numbers[1]) == -torch.inf).all()):", "if False:",
        "soundness/test_products.py::test_a_finite_score_is_no_mask",
    ),
    mutation(
        "attention looks ahead", "dual/attention.py",
        "device=query.device).tril()", "device=query.device).triu()",
        "dual/test_every_layer.py::test_keeps_its_contract[causal attention]",
    ),
    mutation(
        "masks of heads keep what they leave out", "dual/attention.py",
        "mask = ~given  #", "mask = given  #",
        "dual/test_every_layer.py::test_keeps_its_contract[multi-head attention with a mask]",
    ),
    mutation(
        "a transformer without its skip", "dual/attention.py",
        "x = src + attend(m.norm1(src))", "x = attend(m.norm1(src))",
        "dual/test_every_layer.py::test_keeps_its_contract[encoder layer, norm first]",
    ),
    mutation(
        "LSTM without its memory", "dual/recurrent.py",
        "c = torch.sigmoid(f) * c + torch", "c = torch",
        "dual/test_every_layer.py::test_keeps_its_contract[LSTM]",
    ),
    mutation(
        "GRU's gate the other way round", "dual/recurrent.py",
        "return (n + z * (h - n),)", "return (h + z * (n - h),)",
        "dual/test_every_layer.py::test_keeps_its_contract[GRU]",
    ),
    mutation(
        "outputs of the way back in its order", "dual/recurrent.py",
        "sides.append(outputs[::-1] if way else outputs)", "sides.append(outputs)",
        "dual/test_every_layer.py::test_keeps_its_contract[GRU]",
    ),
    mutation(
        "second bias of a recurrent layer lost", "dual/recurrent.py",
        "F.linear(state[0], u, d)),)", "F.linear(state[0], u)),)",
        "dual/test_every_layer.py::test_keeps_its_contract[RNN]",
    ),
    mutation(
        "the first layer's last states for those of any", "dual/recurrent.py",
        "tuple(others)] if others else layers[first]", "tuple(others)] if others else layers[0]",
        "dual/test_every_layer.py::test_keeps_its_contract[last states, one layer]",
    ),
    mutation(
        "variance divided by one less", "dual/normalising.py",
        "if by_sums else squares.mean(dims, keepdim=True)",
        "if by_sums else squares.sum(dims, keepdim=True) / (squares.shape[-1] - 1)",
        "dual/test_every_layer.py::test_keeps_its_contract[layer_norm]",
    ),
    mutation(
        "rounding of a variance by sums ignored", "dual/normalising.py",
        "error = grain * (2 + self.count / 4) * squares", "error = torch.zeros_like(squares)",
        "soundness/test_products.py::test_a_variance_from_sums_of_squares_is_within_its_error",
    ),
    mutation(
        "correction of a variance ignored", "dual/normalising.py",
        "keepdim=True) / (count - correction), keep, dims", "keepdim=True) / count, keep, dims",
        "dual/test_every_layer.py::test_keeps_its_contract[var]",
    ),
]

ENGINES = [
    mutation(
        "overflow on the way to a value ignored", "engines/rounding.py",
        "self._pass.unless_overflowing(evaluating, size + moved, layer.on_the_way)",
        "self._pass.unless_overflowing(evaluating, size + moved)",
        "certificates/test_as_run.py",
    ),
    mutation(
        "interval radius with signs", "engines/ibp.py",
        "return Interval.around(centre, layer.absolute(*(o.radius for o in operands)))",
        "return Interval.around(centre, layer.linear(*(o.radius for o in operands)))",
        "engines/test_engines.py", "soundness/test_closed_forms.py",
    ),
    mutation(
        "wrong line of the two", "engines/backward/crown.py",
        "return torch.addcmul(positive * lines.lower_slope, negative, lines.upper_slope)",
        "return torch.addcmul(positive * lines.upper_slope, negative, lines.lower_slope)",
        "soundness/test_oracles.py::test_relaxations_are_ordered",
    ),
    mutation(
        "lost bias on the way back", "engines/backward/crown.py",
        "                total.append(rows.inner(node, coefficients, bias))\n", "                pass\n",
        "engines/test_engines.py", "soundness/test_closed_forms.py",
    ),
    mutation(
        "missing generators", "engines/forward.py",
        "result | self._unstable(index, band, sum(map(len, result.values())))", "result",
        "engines/test_engines.py", "soundness/test_forward_equals_backward.py",
    ),
    mutation(
        "errors of coefficients times half an interval, however far its centre is", "engines/rounding.py",
        "            farthest = torch.maximum(interval.upper - before, before - interval.lower)\n", "",
        "engines/test_moves.py",
    ),
    mutation(
        "errors of centres in proportion to values that lie in their intervals", "engines/rounding.py",
        "torch.maximum(size, after.abs())", "size",
        "engines/test_moves.py",
    ),
    mutation(
        "coefficients of many readers that are added up for nothing", "engines/rounding.py",
        "forward, back + others", "forward, back",
        "engines/test_readers.py",
    ),
    mutation(
        "interval bounds that go on from wider intervals than their errors are counted for", "engines/best.py",
        "            lane.beside.go_on_from(source, both)\n", "            pass\n",
        "engines/test_best.py",
    ),
    mutation(
        "thin gradients by the library though ours are wanted", "kernels/thin.py",
        "        if wants_x and ours:\n", "        if wants_x and not ours:\n",
        "kernels/test_thin.py",
    ),
    mutation(
        "errors of earlier layers end at the next one", "engines/rounding.py",
        "(before + self.lost)", "self.lost",
        "soundness/test_rounding.py::test_intervals_differ_by_less_than_they_say[ForwardDual()]", "engines/test_forward.py",
    ),
    mutation(
        "a convolution's norm between the frequencies", "dual/conv.py",
        " / math.prod(missed)", "",
        "dual/test_operator_norms.py",
    ),
    mutation(
        "norms of powers of a matrix, one root too many", "dual/base.py",
        "(logarithm / 32)", "(logarithm / 64)",
        "dual/test_operator_norms.py",
    ),
    mutation(
        "row sums alone bound a norm", "dual/base.py",
        "by_row.amax(1).sqrt() * largest.sqrt()", "by_row.amax(1)",
        "dual/test_operator_norms.py", "dual/test_every_layer.py",
    ),
    mutation(
        "unstable units forgotten on the way back", "engines/backward/bands.py",
        "return rows.norm(activation, coefficients, radius)", "return 0 * rows.norm(activation, coefficients, radius)",
        "soundness/test_forward_equals_backward.py::test_on_random_graphs",
    ),
    mutation(
        "cheaper radii that forget unstable units", "engines/backward/settling.py",
        "layer.along(band.slope.abs(), operands[0]) + band.radius)", "layer.along(band.slope.abs(), operands[0]))",
        "engines/test_settling.py::test_settled_units_have_wider_intervals_and_the_same_band",
    ),
    mutation(
        "cheaper radii with signs", "engines/backward/settling.py",
        "self.rounding.with_room(index, layer.absolute(*operands))", "self.rounding.with_room(index, layer.linear(*operands).abs())",
        "engines/test_settling.py::test_settled_units_have_wider_intervals_and_the_same_band",
    ),
    mutation(
        "units settled without room for rounding", "engines/backward/settling.py",
        "self.rounding.with_room(index, layer.absolute(*operands))", "layer.absolute(*operands)",
        "engines/test_settling.py::test_settled_units_have_room_for_the_rounding_of_a_large_bias",
    ),
    mutation(
        "open units in other units' places", "engines/backward/settling.py",
        "found = values.movedim(1, 0)[:, self.rank, self.place]", "found = values.movedim(1, 0)[:, self.rank.flip(0), self.place]",
        "engines/test_settling.py::test_blocks_hold_every_unit_once",
    ),
    mutation(
        "open units bounded by the first example's bands", "engines/backward/bands.py",
        "Band(select(b.slope, examples), b.centre,", "Band(select(b.slope, 0 * examples), b.centre,",
        "engines/test_settling.py::test_margins_stay_the_same",
    ),
    mutation(
        "activations that read all that others read", "engines/backward/rows.py",
        "windows[i], window.then(inner)) for i in node.inputs]",
        "windows[i], windows[i] if isinstance(layer, ElementwiseDual) else window.then(inner)) for i in node.inputs]",
        "engines/test_local_rows.py",
    ),
    mutation(
        "input's part forgotten on the way back", "engines/backward/bands.py",
        "            total.append(self._support(rows, on_input))\n", "            total.append(0 * self._support(rows, on_input))\n",
        "engines/test_engines.py", "soundness/test_forward_equals_backward.py",
    ),
    mutation(
        "chunk of rows lost", "engines/backward/rows.py",
        "seed.diagonal(start).fill_(1)", "seed.diagonal(start).fill_(float(start == 0))",
        "engines/test_memory.py", "engines/test_engines.py",
    ),
    mutation(
        "every part of a batch gets the first part's rows", "engines/backward/dual.py",
        "None if spec is None else spec[some], None if given",
        "None if spec is None else spec[slice(0, some.stop - some.start)], None if given",
        "engines/test_memory.py::test_small_budgets_give_the_same_gradients",
    ),
    mutation(
        "slopes of a ReLU beyond 1", "dual/piecewise.py",
        "below = Interval((positive & (z.lower >= 0)).to(slope), positive.to(slope))",
        "below = Interval((positive & (z.lower >= 0)).to(slope), 2 * positive.to(slope))",
        "engines/test_slopes.py",
    ),
    mutation(
        "the better bound with the slack of the other", "engines/best.py",
        "(one.lower, other.lower), (one.slack, other.slack))", "(one.lower, other.lower), (other.slack, one.slack))",
        "engines/test_best.py::test_the_better_of_two_proofs",
    ),
    mutation(
        "window of two layers with the inner stride forgotten", "dual/base.py",
        "tuple(a * t + b for a, t, b in zip(self.low, inner.stride, inner.low, strict=True)),",
        "tuple(a + b for a, t, b in zip(self.low, inner.stride, inner.low, strict=True)),",
        "engines/test_local_rows.py",
    ),
    mutation(
        "slack times 0.1", "engines/backward/bands.py",
        "total = SAFETY * (error + rows.norm(index, rows.seed, rounding.ending(index)) + rounding.lost)",
        "total = 0.1 * (error + rows.norm(index, rows.seed, rounding.ending(index)) + rounding.lost)",
        "soundness/test_rounding.py::test_large_terms_that_cancel",
        "soundness/test_rounding.py::test_rounding_costs_little[Dual(intermediate=IBP())]",
    ),
    mutation(
        "gamma of a sum times 0.1", "engines/rounding.py",
        "return SAFETY * part / (1 - 2 * part)", "return 0.1 * part / (1 - part)",
        "engines/test_gamma.py",
    ),
    mutation(
        "run error ignored", "engines/backward/bands.py",
        "run_error = SAFETY * (run_error + rows.norm(", "run_error = 0 * (run_error + rows.norm(",
        "certificates/test_as_run.py", "soundness/test_rounding.py",
    ),
    mutation(
        "intervals rounded inwards", "engines/rounding.py",
        "return interval.widened(self.below, self.above)", "return interval.widened(-self.below, -self.above)",
        "engines/test_outward.py", "soundness/test_rounding.py",
    ),
    mutation(
        "values outside an interval forgotten", "engines/rounding.py",
        "return torch.add(up, bent, alpha=2), torch.add(down, bent, alpha=2)",
        "return torch.zeros_like(up), torch.zeros_like(down)",
        "soundness/test_rounding.py::test_large_terms_that_cancel",
    ),
    mutation(
        "underflow forgotten", "engines/rounding.py",
        "return (terms + LOST) * torch.finfo(dtype).tiny", "return 0.0",
        "engines/test_tiny_rows.py", "soundness/test_rounding.py", "engines/test_outward.py",
    ),
    mutation(
        "margin equal to its error proves", "engines/results.py",
        "return (excess > 0) & (excess < torch.inf)", "return (excess >= 0) & (excess < torch.inf)",
        "engines/test_decide.py",
    ),
    mutation(
        "infinite bounds prove", "engines/results.py",
        "return (excess > 0) & (excess < torch.inf)", "return excess > 0",
        "engines/test_decide.py",
    ),
    mutation(
        "hull instead of intersection", "interval.py",
        "lower, upper = torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper)",
        "lower, upper = torch.minimum(self.lower, other.lower), torch.maximum(self.upper, other.upper)",
        "engines/test_intersect.py",
    ),
    mutation(
        "same draws for every layer and step", "engines/streams.py",
        "                part.angles.uniform_(0, math.pi, generator=generator)\n",
        "                part.angles.uniform_(0, math.pi, generator=torch.Generator().manual_seed(0))\n",
        "engines/test_high_probability.py::test_no_random_numbers_are_used_twice",
    ),
    mutation(
        "same draws for every example", "kernels/stream.py",
        "(self.angles[part] + self.turns).tan_()", "(self.angles[part] + 0 * self.turns).tan_()",
        "engines/test_independent_draws.py",
    ),
    mutation(
        "estimates of all layers from the same draws", "engines/high_probability.py",
        "self._estimate(network, region, found.wide, source, estimator, generator)",
        "self._estimate(network, region, found.wide, source, estimator, generator.manual_seed(self.seed))",
        "engines/test_high_probability.py",
    ),
    mutation(
        "no union bound over the estimates", "engines/high_probability.py",
        "return (math.log(delta) - math.log(max(1, estimates))) / m", "return math.log(delta) / m",
        "engines/test_high_probability.py",
    ),
    mutation(
        "fresh projections not added to a stream", "engines/streams.py",
        "pass_and_add(streams[own], slope, radius, draws, dtypes[own])",
        "pass_and_add(streams[own], slope, 0 * radius, draws, dtypes[own])",
        "dual/test_every_layer.py::test_streams_of_projections_pass_it_with_the_exact_widths[linear]", "engines/test_projected.py",
    ),
    mutation(
        "bias of the likelihood estimator not corrected", "kernels/median.py",
        "return 1 - 1 / k if steps > 0 and k > 1 else 1.0", "return 1.0",
        "kernels/test_newton_scale.py", "engines/test_projected_average.py",
    ),
    mutation(
        "exact first radii also after two layers that mix", "engines/projected.py",
        "for a, shapes in layers) <= 1", "for a, shapes in layers) <= 2",
        "engines/test_exact_first.py",
    ),
    mutation(
        "slopes leave their range", "engines/backward/slopes.py",
        "self.slope = torch.minimum(torch.maximum(moved, self.lowest), self.highest)", "self.slope = moved",
        "engines/test_slopes.py",
    ),
    mutation(
        "bounds of open rows in the wrong order", "engines/backward/slopes.py",
        "unknown.scatter(1, order, known", "unknown.scatter(1, order.flip(1), known",
        "engines/test_slopes.py",
    ),
    mutation(
        "slopes move downhill", "engines/backward/slopes.py",
        "value=rate / (1 - decay**step))", "value=-rate / (1 - decay**step))",
        "engines/test_slopes.py",
    ),
    mutation(
        "open examples are asked the rows of the first ones", "engines/best.py",
        "prove(network, part, spec[some], rows[some])", "prove(network, part, spec[slice(0, len(some))], rows[some])",
        "engines/test_best.py",
    ),
    mutation(
        "the worse bound of two", "engines/best.py",
        "better = (ranks[1] > ranks[0]) |", "better = (ranks[1] < ranks[0]) |",
        "engines/test_best.py::test_the_better_of_two_proofs",
    ),
    mutation(
        "intersection with the error of the first engine", "engines/best.py",
        "[(f.intervals[i], _outside(f, i)) for f in found]", "[(f.intervals[i], _outside(found[0], i)) for f in found]",
        "engines/test_best.py",
    ),
    mutation(
        "lanes go on without the error of the others", "engines/best.py",
        "            rounding.take(source, both, outside)\n", "            pass\n",
        "engines/test_best.py",
    ),
]

CERTIFICATES = [
    mutation(
        "contradictions of certificates ignored", "certificates/proof.py",
        "    if len(broken) > 0:\n        raise ContradictionError(", "    if False:\n        raise ContradictionError(",
        "certificates/test_contradiction.py::test_an_engine_that_proves_too_much_is_found_out",
    ),
    mutation(
        "label off by one", "kernels/weigh.py",
        "return identity[labels].unsqueeze(0) - identity.unsqueeze(1)",
        "return identity[(labels + 1) % classes].unsqueeze(0) - identity.unsqueeze(1)",
        "certificates/test_certificate.py",
    ),
    mutation(
        "wrong answers are certified", "certificates/certificate.py",
        " & self.right\n", "\n",
        "certificates/test_certificate.py",
    ),
    mutation(
        "one proved row is enough", "spec/question.py",
        "            return parts.all(1)\n", "            return parts.any(1)\n",
        "engines/test_decide.py", "spec/test_spec.py",
    ),
    mutation(
        "one row too few", "spec/question.py",
        "return parts.sum(1) >= self.needed", "return parts.sum(1) >= self.needed - 1",
        "spec/test_spec.py",
    ),
    mutation(
        "label among one more than k", "spec/properties.py",
        "AtLeast(classes - self.k + 1, ", "AtLeast(classes - self.k, ",
        "spec/test_spec.py",
    ),
    mutation(
        "limits the wrong way round", "spec/properties.py",
        "limits = torch.cat([-sign * end", "limits = torch.cat([sign * end",
        "spec/test_spec.py",
    ),
    mutation(
        "all of several is one of them", "spec/properties.py",
        "    def needed(self) -> int:\n        return len(self.parts)\n", "    def needed(self) -> int:\n        return 1\n",
        "spec/test_spec.py",
    ),
    mutation(
        "one of several is all of them", "spec/properties.py",
        "    def needed(self) -> int:\n        return 1\n", "    def needed(self) -> int:\n        return len(self.parts)\n",
        "spec/test_spec.py",
    ),
    mutation(
        "parts of a question share the rows of the first", "spec/properties.py",
        "question.rule.beyond(sum(map(len, linear)))", "question.rule.beyond(0)",
        "spec/test_spec.py",
    ),
    mutation(
        "targets exceed the label", "spec/question.py",
        "rows = identity[labels].unsqueeze(0) - identity[targets].movedim(1, 0)",
        "rows = identity[targets].movedim(1, 0) - identity[labels].unsqueeze(0)",
        "spec/test_spec.py",
    ),
    mutation(
        "error of a margin without the label's own", "spec/question.py",
        "return e.gather(1, self.labels.unsqueeze(1)) + e", "return e",
        "spec/test_spec.py::test_the_error_of_a_row_is_that_of_the_worst_outputs",
    ),
    mutation(
        "some examples get the offsets of the first ones", "spec/question.py",
        "offsets=_part(self.offsets, some),", "offsets=_part(self.offsets, slice(0, len(torch.arange(10**6)[some]))),",
        "spec/test_spec.py",
    ),
    mutation(
        "one row too few breaks a rule", "spec/question.py",
        "count = len(self.parts) - self.needed + 1  #", "count = max(1, len(self.parts) - self.needed)  #",
        "spec/test_spec.py",
    ),
    mutation(
        "rows that float32 rounds are asked as rounded", "certificates/proof.py",
        "    if not question.exact_in(x.dtype):\n        return replace(proof, slack=torch.full_like(proof.slack, torch.inf))\n", "",
        "certificates/test_specifications.py::test_rows_that_need_float64_prove_nothing_without_it",
    ),
    mutation(
        "offsets rounded up", "certificates/proof.py",
        "down = torch.nextafter(total, torch.full_like(total, -torch.inf))", "down = total * (1 + 2**-40)",
        "certificates/test_specifications.py::test_offsets_are_added_without_rounding_up",
    ),
    mutation(
        "offsets forgotten", "certificates/proof.py",
        "    if question.offsets is None:\n", "    if True:\n",
        "certificates/test_specifications.py::test_margins_are_below_exact_minima",
    ),
    mutation(
        "certified as run without the run error", "certificates/certificate.py",
        "return self._proved(self.slack, self.run_error)", "return self._proved(self.slack)",
        "certificates/test_as_run.py",
    ),
    mutation(
        "float64 bounds rounded up to float32", "certificates/proof.py",
        "lower=_towards(-torch.inf, proof.lower),", "lower=_towards(torch.inf, proof.lower),",
        "certificates/test_rounded_proofs.py",
    ),
    mutation(
        "network that needs float64 certified in float32", "certificates/proof.py",
        "if prepared.only_in_double else proof", "if False else proof",
        "certificates/test_computed_constants.py",
    ),
    mutation(
        "radius that was not certified", "certificates/proof.py",
        "        high[open_[~proved]] = middle[open_[~proved]]\n    return low\n",
        "        high[open_[~proved]] = middle[open_[~proved]]\n    return high\n",
        "certificates/test_radius.py",
    ),
    mutation(
        "radius of examples that are wrong already", "certificates/proof.py",
        "full = certified(largest, open_) & right", "full = certified(largest, open_)",
        "certificates/test_radius.py::test_the_radius_is_zero_where_only_rounding_makes_the_answer_wrong",
    ),
    mutation(
        "robust loss of the best scores", "certificates/loss.py",
        "return -engine.minimum(dual, region, spec).lower", "return engine.minimum(dual, region, spec).lower",
        "certificates/test_loss.py",
    ),
    mutation(
        "loss keeps the graph of the model as it was", "certificates/loss.py",
        " or captured.inputs != inputs or captured.fingerprint != now:", " or captured.inputs != inputs:",
        "certificates/test_loss.py", "graph/test_changes.py",
    ),
    mutation(
        "attack climbs", "certificates/descent.py",
        "moved(region, runs.x, -runs.slope, runs.size)", "moved(region, runs.x, runs.slope, runs.size)",
        "certificates/test_descent.py", "certificates/test_attack.py",
    ),
    mutation(
        "steps never halved", "certificates/descent.py",
        "    halve = few | stuck\n", "    halve = few & ~few\n",
        "certificates/test_descent.py",
    ),
    mutation(
        "momentum leaves the set", "certificates/descent.py",
        "        x = x if onwards is None else onwards\n", "        x = x + (1 - MOMENTUM) * (runs.x - runs.before)\n",
        "certificates/test_descent.py",
    ),
    mutation(
        "every start aims at the nearest class", "certificates/attacks.py",
        "self.question.rule.failing(values, aim)", "self.question.rule.failing(values, 0)",
        "certificates/test_descent.py",
    ),
    mutation(
        "counterexample confirmed whatever its error", "certificates/attacks.py",
        "doubt = asked.at_error(error) + rounding", "doubt = rounding",
        "certificates/test_attack_rounding.py", "certificates/test_attack.py",
    ),
]

CASCADES = [
    mutation(
        "cascade certifies examples that are open", "cascades/paper.py",
        "return Answers(label, ~open_, stage), proved, as_run", "return Answers(label, open_ | ~open_, stage), proved, as_run",
        "cascades/test_paper.py", "cascades/test_soundness.py",
    ),
    mutation(
        "one stage that is right is enough", "cascades/paper.py",
        "agree = (torch.stack(predicted) == labels).all(0)", "agree = (torch.stack(predicted) == labels).any(0)",
        "cascades/test_paper.py", "cascades/test_soundness.py",
    ),
    mutation(
        "routed stage may answer another label", "cascades/sound.py",
        "return self.silent_from <= threshold, self.answers_below > threshold",
        "return self.silent_from <= torch.inf, self.answers_below > threshold",
        "cascades/test_routed.py", "cascades/test_soundness.py",
    ),
    mutation(
        "routed stage answers below its threshold", "cascades/sound.py",
        "answers = margin_of(scores[j], top) > self.thresholds[j]  #",
        "answers = margin_of(scores[j], top) > 0.5 * self.thresholds[j]  #",
        "cascades/test_routed.py", "cascades/test_soundness.py",
    ),
    mutation(
        "slack of one model for the sum", "cascades/stage.py",
        "slack = slacks.sum(0) + size * gamma_of_sum(", "slack = slacks.amin(0) + size * gamma_of_sum(",
        "cascades/test_rounding.py::test_a_sum_of_bounds_has_the_slack_of_all_of_them",
    ),
]

DATA = [
    mutation(
        "mirror image moved by a pixel", "data/images.py",
        "width - 1 - column)", "width - column)",
        "data/test_augment.py",
    ),
    mutation(
        "crop never reaches its end", "data/images.py",
        "* (2 * crop + 1)).long() - crop for i", "* 2 * crop).long() - crop for i",
        "data/test_augment.py",
    ),
    mutation(
        "test images among those to train on", "data/loading.py",
        'shuffled[:test] if split == "test" else shuffled[test:]', 'shuffled[:test] if split == "test" else shuffled',
        "data/test_own.py",
    ),
    mutation(
        "damaged download accepted", "data/downloads.py",
        "state = FileState.RIGHT if sha256 == file.sha256 else FileState.WRONG_CONTENTS", "state = FileState.RIGHT",
        "data/test_verify.py",
    ),
]

RUNS = [
    mutation(
        "checkpoint forgets the optimiser", "runs/checkpoint.py",
        '    optimiser.load_state_dict({"state": state,', '    dict({"state": state,',
        "training/test_runs.py::test_a_stopped_run_goes_on_bit_for_bit",
    ),
    mutation(
        "damaged checkpoint accepted", "runs/checkpoint.py",
        "if digest(path / f) != known]", "if digest(path / f) is None]",
        "training/test_runs.py::test_a_damaged_checkpoint_falls_back_to_the_one_before",
    ),
    mutation(
        "ramp off by one", "runs/schedule.py",
        "return start + (end - start) * since / (ramp - 1)", "return start + (end - start) * since / ramp",
        "runs/test_schedule.py",
    ),
    mutation(
        "learning rate halved an interval late", "runs/schedule.py",
        "((epoch - constant) // every + 1)", "((epoch - constant) // every)",
        "runs/test_schedule.py",
    ),
    mutation(
        "certificates of another network gone on with", "runs/lines.py",
        'frozenset({"format", "batch", "python", "asked"})', 'frozenset({"format", "batch", "python", "asked", "network"})',
        "runs/test_lines.py::test_only_what_may_change_is_found_anew",
    ),
    mutation(
        "half a batch of lines kept", "runs/lines.py",
        "whole = whole[: len(whole) // batch * batch]", "whole = whole[: len(whole)]",
        "runs/test_lines.py",
    ),
]

EVALUATION = [
    mutation(
        "broken certificates accepted", "evaluation/evaluate.py",
        'refuse_broken(source, certified & broken.exact, "in real numbers", advice)',
        'refuse_broken(source, certified & ~certified, "in real numbers", advice)',
        "evaluation/test_claims.py",
    ),
    mutation(
        "every point of the curve proved at the same size", "evaluation/evaluate.py",
        "judged = judge(model, data, wider, engine, ", "judged = judge(model, data, ball, engine, ",
        "evaluation/test_claims.py",
    ),
    mutation(
        "every point of the curve attacked at the same size", "evaluation/evaluate.py",
        "hit = attacked(model, data, wider, ", "hit = attacked(model, data, ball, ",
        "evaluation/test_claims.py",
    ),
    mutation(
        "largest margin instead of the smallest", "evaluation/judge.py",
        "found.margins.min(1).values, found.slack.max(1).values", "found.margins.max(1).values, found.slack.max(1).values",
        "evaluation/test_judge.py",
    ),
    mutation(
        "a part cut short by the time limit becomes lines", "evaluation/judge.py",
        "    if found.reached is not None:\n        raise TimeLimitError", "    if False:\n        raise TimeLimitError",
        "evaluation/test_ledger.py",
    ),
    mutation(
        "lines numbered within their batch", "runs/lines.py",
        "enumerate(found, start)", "enumerate(found)",
        "evaluation/test_ledger.py",
    ),
    mutation(
        "last batch lost", "evaluation/processes.py",
        "for first in range(start, len(data), step)]", "for first in range(start, max(1, len(data) - step + 1), step)]",
        "evaluation/test_ledger.py",
    ),
    mutation(
        "gradients of uneven shares weighed alike", "evaluation/processes.py",
        "return Share(own, len(own) * self.size / len(index), len(own))", "return Share(own, 1.0, len(own))",
        "training/test_distributed.py",
    ),
]

TRAINING = [
    mutation(
        "gradients not clipped", "training/step.py",
        "if self.clip_gradients is not None:", "if self.clip_gradients is not None and self.clip_gradients < 0:",
        "training/test_update.py",
    ),
    mutation(
        "weights of the two losses exchanged", "training/objectives.py",
        "return weight * robust + (1 - weight) * usual", "return (1 - weight) * robust + weight * usual",
        "training/test_update.py",
    ),
    mutation(
        "eps of the first epoch for all", "training/loop.py",
        "size = pace.at(epoch, (batch + 1) / batches)", "size = pace.at(0, (batch + 1) / batches)",
        "training/test_update.py",
    ),
    mutation(
        "small box sticks out of the ball", "training/objectives.py",
        "room = self.ball.eps - self.small_ball.eps", "room = self.ball.eps",
        "training/test_objectives.py",
    ),
    mutation(
        "batch normalisation trains while the attack searches", "training/objectives.py",
        "        with evaluating(model):\n            return self.search(", "        if True:\n            return self.search(",
        "training/test_objectives.py",
    ),
    mutation(
        "inactive units counted as active", "training/objectives.py",
        "(found.upper < 0).to(width)", "(found.upper > 0).to(width)",
        "training/test_objectives.py",
    ),
    mutation(
        "mean of epochs falls behind", "training/step.py",
        "1 / (epoch - self.first + 1)", "1 / (epoch - self.first + 2)",
        "training/test_averages.py",
    ),
    mutation(
        "smooth ramp with a corner", "runs/schedule.py",
        "a * m**p + a * p * m ** (p - 1) * (x - m)", "a * m**p + a * m ** (p - 1) * (x - m)",
        "runs/test_modern_schedules.py",
    ),
    mutation(
        "same numbers at every step", "training/loop.py",
        "text = \":\".join(map(str, (config.seed, *what)))", 'text = str(config.seed)',
        "training/test_update.py",
    ),
    mutation(
        "last examples of an epoch left out", "training/loop.py",
        "return order[number * size :] if last else order[number * size : (number + 1) * size]",
        "return order[number * size : (number + 1) * size]",
        "training/test_batches.py",
    ),
    mutation(
        "mean and deviation exchanged", "models.py",
        "return (x - self.mean) / self.std", "return (x - self.std) / self.mean",
        "models/test_normalize.py",
    ),
    mutation(
        "limit of images ignored", "training/trained.py",
        "        data = data.take(limit)\n", "        data = data.take(len(data))\n",
        "cli/test_commands.py", "cli/test_certificates.py",
    ),
]

REPORT = [
    mutation(
        "attack above the proof not noticed", "report/verdicts.py",
        "broken > proof + 1e-9 for broken, proof in pairs", "broken > proof + 1.0 for broken, proof in pairs",
        "report/test_page.py",
    ),
    mutation(
        "errors drawn as accuracies", "report/sections/curves.py",
        "(eps, 1 - point.robust_error)", "(eps, point.robust_error)",
        "report/test_page.py", "report/test_parts.py",
    ),
    mutation(
        "damaged record taken for a whole one", "report/run.py",
        "    if wrong is not None:\n        raise ValueError(wrong)\n", "",
        "report/test_page.py",
    ),
    mutation(
        "unproved bars in the colour of proof", "report/plots.py",
        'class_=f"f-{tone}"', 'class_="f-proved"',
        "report/test_verdicts.py",
    ),
]

CLI = [
    mutation(
        "check finds differences and succeeds", "cli/certify.py",
        "raise typer.Exit(1 if told else 0)", "raise typer.Exit(0)",
        "cli/test_check.py",
    ),
    mutation(
        "config wins over the command line", "cli/options.py",
        "options = {**before, **changes}", "options = {**changes, **before}",
        "cli/test_commands.py", "cli/test_schedule.py",
    ),
    mutation(
        "a failure is no object for a script", "cli/app.py",
        'write_answer(message.strip().removeprefix("error: "))', "pass",
        "cli/test_scripts.py",
    ),
    mutation(
        "engine of the command line ignored", "cli/certify.py",
        "else ENGINES[engine]", 'else ENGINES["dual"]',
        "cli/test_certificates.py", "cli/test_commands.py",
    ),
]

TESTING = [
    mutation(
        "contract does not ask bands to contain the function", "testing/_elementwise.py",
        "            self._contains(lines, z, points, values, kind)\n", "            pass\n",
        "testing/test_check_dual_layer.py",
    ),
    mutation(
        "NaN passes for a proof in the contract", "testing/_elementwise.py",
        "        self._nan()\n", "",
        "testing/test_check_dual_layer.py",
    ),
]

INTERCHANGE = [
    mutation(
        "unsat without room for rounding", "interchange/verification.py",
        "holds, as_run = exceeds(margin, slack),", "holds, as_run = exceeds(margin, 0 * slack),",
        "interchange/test_verification.py",
    ),
    mutation(
        "as run is what holds in real numbers", "interchange/verification.py",
        "exceeds(margin, slack), exceeds(margin, slack, run_error)", "exceeds(margin, slack), exceeds(margin, slack)",
        "interchange/test_verification.py",
    ),
    mutation(
        "unsat when the first box is refuted", "interchange/verification.py",
        "for c, each in enumerate(self.refutations)}", "for c, each in enumerate(self.refutations[:1])}",
        "interchange/test_verification.py",
    ),
    mutation(
        "counterexample not confirmed in real numbers", "interchange/verification.py",
        " and _satisfies(prepared, Box(lower, upper), found):", ":",
        "interchange/test_verification.py",
    ),
    mutation(
        "counterexample not confirmed by the reference", "interchange/verification.py",
        "if bool((found.rows @ ran <= found.limits).all()) and ", "if ",
        "interchange/test_verification.py",
    ),
    mutation(
        "what float64 would decide stays open", "interchange/verification.py",
        "        self._bound(engine, self._those(", "        (lambda *_: None)(engine, self._those(",
        "interchange/test_verification.py",
    ),
    mutation(
        "constants are rounded unseen", "interchange/conversion.py",
        "        if not torch.equal(held.to(tensor.dtype), tensor)", "        if False",
        "interchange/test_bad_onnx.py",
    ),
    mutation(
        "boxes rounded inwards for proofs", "interchange/vnnlib.py",
        "outer = [(_below(low), _above(high)) for low, high in ends]", "outer = [(_above(low), _below(high)) for low, high in ends]",
        "interchange/test_vnnlib.py",
    ),
    mutation(
        "limits of a proof rounded down", "interchange/vnnlib.py",
        "return Conjunction(rows, above, below)", "return Conjunction(rows, below, below)",
        "interchange/test_vnnlib.py",
    ),
    mutation(
        "alternatives of a conjunction are alternatives of the whole", "interchange/vnnlib.py",
        "return [[term for part in chosen for term in part] for chosen in itertools.product(*each)]",
        "return [chosen for part in each for chosen in part]",
        "interchange/test_vnnlib.py",
    ),
    mutation(
        "module not compared with the file", "interchange/onnx_reading.py",
        "    if not apart <= TOLERANCE:", "    if False:",
        "interchange/test_bad_onnx.py",
    ),
    mutation(
        "examples that are mixed go unnoticed", "interchange/onnx_reading.py",
        "    _check_examples_apart(file, usual, expected)\n", "",
        "interchange/test_bad_onnx.py",
    ),
    mutation(
        "weights of another file", "interchange/onnx_file.py",
        "if tensor.data_location == onnx.TensorProto.EXTERNAL:", "if False:",
        "interchange/test_bad_onnx.py",
    ),
    mutation(
        "an exported file takes its place unseen", "interchange/onnx_writing.py",
        "        _check_same(model, temporary, place, example)\n", "",
        "interchange/test_writing.py",
    ),
]

MUTATIONS = [
    *GRAPH, *SETS, *DUAL, *ENGINES, *CERTIFICATES, *CASCADES, *INTERCHANGE, *DATA, *RUNS, *EVALUATION, *TRAINING, *REPORT, *CLI,
    *TESTING,
]
