"""Vanishing and exploding gradients: the effect of a change of h on the state n steps later.

‖∂h_t/∂h_k‖ ≤ (γ_W γ_g)^(t−k), γ_W the largest singular value of W_hh. Run it: python examples/gradient_flow.py
"""

import torch

from seqloom.inspect.views.gradients import Clipping, flows, recurrent_matrices
from seqloom.models.recurrent_lm import RecurrentLMConfig

H, STEPS = 32, 30
torch.manual_seed(1)
tanh = RecurrentLMConfig(cell="elman", hidden=H).build(vocabulary=50)
relu = RecurrentLMConfig(cell="elman", hidden=H, activation="relu").build(vocabulary=50)
text = torch.randint(1, 50, (STEPS + 1,)).tolist()
rotation = torch.eye(H).roll(1, 0)  # all singular values are 1
shift = torch.diag(torch.ones(H - 2), 2)  # all but two are 1, but shift^16 = 0


def describe_flow(model, weight):
    """Describe γ_W, the gradient after STEPS steps, and its bound."""
    cell = model.stack.cells[0]
    with torch.no_grad():
        cell.weight_h.copy_(weight)
        cell.bias_x.fill_(100.0 if model is relu else 0.0)  # with all units active, ReLU is the identity
    (flow,) = flows(model, text)
    return f"γ_W = {flow.gamma_w:.2f}: gradient {flow.measured[-1]:.2e}, bound {flow.bound[-1]:.2e}"


for name, model in (("without a non-linearity", relu), ("with tanh", tanh)):
    print(f"\n{name}, {STEPS} steps:")
    for gamma in (0.8, 1.0, 1.25):
        print("  " + describe_flow(model, gamma * rotation))

print("\na shift matrix, without a non-linearity:")
print(f"  {describe_flow(relu, 1.25 * shift)}; spectral radius {recurrent_matrices(relu)[0].spectral_radius:.2f}")
print(
    f"\nclipping at θ = 1: ‖g‖ = 800 becomes {Clipping(800.0, 1.0).clipped:g}, 0.5 stays {Clipping(0.5, 1.0).clipped:g}"
)
