"""ATen's losses with a bound inside: see `pytorch.formulas`."""

from typing import Any

from pcp.frontends.pytorch.formula import Formula, Formulas


class Losses(Formulas):
    """Losses whose backward is no derivative of their lowering."""

    def table(self) -> dict[Any, Formula]:
        """The formula of each op."""
        aten = self.aten
        return {
            aten.binary_cross_entropy.default: self.binary_cross_entropy,
            aten.huber_loss.default: self.huber_loss,
            aten.smooth_l1_loss.default: self.smooth_l1_loss,
        }

    def binary_cross_entropy(
        self, x: Any, target: Any, weight: Any = None, reduction: int = 1
    ) -> Any:
        """binary_cross_entropy_backward: (x - t) / max((1 - x) x, 1e-12).

        The logarithms are bounded by -100, and what is near 0 and 1 is a line.
        """
        torch = self.torch
        inside = (1 - x) * x > 1e-12
        safe = torch.where(inside, x, 0.5)
        curve = -(target * torch.log(safe) + (1 - target) * torch.log1p(-safe))
        fixed = self.stop(x)
        line = (x - fixed) * ((fixed - target) / 1e-12)
        line = line - target * torch.log(fixed).clamp_min(-100)
        line = line - (1 - target) * torch.log1p(-fixed).clamp_min(-100)
        loss = torch.where(inside, curve, line)
        loss = loss if weight is None else loss * weight
        return _reduced(loss, reduction)

    def smooth_l1_loss(
        self, x: Any, target: Any, reduction: int = 1, beta: float = 1.0
    ) -> Any:
        """smooth_l1_loss_backward: no square of what is far."""
        far = self._size(x - target)
        if beta == 0:
            return _reduced(far, reduction)
        near = self.torch.where(far < beta, far, 0)
        curve = near * near * 0.5 / beta
        loss = self.torch.where(far < beta, curve, far - 0.5 * beta)
        return _reduced(loss, reduction)

    def huber_loss(
        self, x: Any, target: Any, reduction: int = 1, delta: float = 1.0
    ) -> Any:
        """huber_loss_backward: no square of what is far."""
        far = self._size(x - target)
        near = self.torch.where(far <= delta, far, 0)
        line = delta * (far - 0.5 * delta)
        loss = self.torch.where(far <= delta, near * near * 0.5, line)
        return _reduced(loss, reduction)

    def _size(self, x: Any) -> Any:
        return x * self.torch.sign(x)

    def multi_margin_loss(
        self,
        x: Any,
        target: Any,
        p: Any = 1,
        margin: Any = 1,
        weight: Any = None,
        reduction: int = 1,
    ) -> Any:
        """multi_margin_loss_backward: nothing on the margin itself."""
        torch = self.torch
        x, classes = torch.atleast_2d(x), torch.atleast_1d(target).unsqueeze(1)
        over = margin - torch.gather(x, 1, classes) + x
        over = torch.where(over <= 0, 0, over)
        over = over if p == 1 else over * over
        over = over if weight is None else over * weight[classes]
        others = torch.arange(x.shape[1], device=x.device) != classes
        loss = torch.mean(torch.where(others, over, 0), 1)
        return _reduced(loss if target.ndim else loss.squeeze(0), reduction)


def _reduced(loss: Any, reduction: int) -> Any:
    """None, the mean or the sum, as torch numbers them."""
    return {0: lambda: loss, 1: loss.mean, 2: loss.sum}[reduction]()
