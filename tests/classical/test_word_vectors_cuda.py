"""Word vectors on a GPU: equality with the CPU, and deterministic training."""

import pytest
import torch

from seqloom.classical.word_vectors import Objective, WordVectorsConfig
from seqloom.classical.word_vectors.negative_sampling import Text
from seqloom.classical.word_vectors.trainer import WordTrainConfig, WordVectorTrainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU available")
OBJECTIVES: tuple[Objective, ...] = ("skipgram", "cbow", "glove")
V = 200


def train_model(objective: Objective, device: str, deterministic: bool = False, lr: float = 0.1):
    words = torch.randint(2, V, (4000,), generator=torch.Generator().manual_seed(0))
    text = Text(words, torch.arange(4000) // 40)
    model = WordVectorsConfig(objective=objective, vector_size=16).build(V).draw(1, torch.bincount(words, minlength=V))
    chosen = WordTrainConfig(epochs=2, block=500, batch=256, engine="torch", device=device, lr=lr)
    trainer = WordVectorTrainer(model, text, chosen, seed=3)
    if deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        trainer.run(range(trainer.total))
    finally:
        torch.use_deterministic_algorithms(False)
    return model


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gpu_training_matches_cpu_training(objective):
    one, other = train_model(objective, "cuda"), train_model(objective, "cpu")
    assert one.device.type == "cuda"
    torch.testing.assert_close(one.to("cpu").vectors, other.vectors, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_deterministic_training_is_reproducible(objective, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    one, other = (train_model(objective, "cuda", deterministic=True) for _ in range(2))
    assert torch.equal(one.vectors, other.vectors) and torch.equal(one.contexts, other.contexts)
    assert not torch.equal(one.vectors, train_model(objective, "cuda", deterministic=True, lr=0.2).vectors)
