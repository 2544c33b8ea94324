"""A bigram model as StableHLO, and an experiment that trains it in a second."""

import json
from pathlib import Path

VOCABULARY, BATCH, BLOCK = 64, 4, 8
MODEL = f"""
func.func @main(
    %table: tensor<{VOCABULARY}x{VOCABULARY}xf32>,
    %ids: tensor<{BATCH}x{BLOCK}xi64>,
    %targets: tensor<{BATCH}x{BLOCK}xi64>) -> tensor<f32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %count = stablehlo.constant dense<{BATCH * BLOCK}.0> : tensor<f32>
  %flat = stablehlo.reshape %ids : (tensor<{BATCH}x{BLOCK}xi64>)
      -> tensor<{BATCH * BLOCK}x1xi64>
  %logits = "stablehlo.gather"(%table, %flat) <{{
      dimension_numbers = #stablehlo.gather<offset_dims = [1],
          collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, {VOCABULARY}>}}>
      : (tensor<{VOCABULARY}x{VOCABULARY}xf32>, tensor<{BATCH * BLOCK}x1xi64>)
      -> tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>
  %max = stablehlo.reduce(%logits init: %low) applies stablehlo.maximum
      across dimensions = [1] : (tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>, tensor<f32>)
      -> tensor<{BATCH * BLOCK}xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0]
      : (tensor<{BATCH * BLOCK}xf32>) -> tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>
  %shifted = stablehlo.subtract %logits, %maxes
      : tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>
  %exp = stablehlo.exponential %shifted : tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>
  %sum = stablehlo.reduce(%exp init: %zero) applies stablehlo.add
      across dimensions = [1] : (tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>, tensor<f32>)
      -> tensor<{BATCH * BLOCK}xf32>
  %log = stablehlo.log %sum : tensor<{BATCH * BLOCK}xf32>
  %row = stablehlo.iota dim = 1 : tensor<{BATCH * BLOCK}x{VOCABULARY}xi64>
  %wanted = stablehlo.reshape %targets : (tensor<{BATCH}x{BLOCK}xi64>)
      -> tensor<{BATCH * BLOCK}xi64>
  %wide = stablehlo.broadcast_in_dim %wanted, dims = [0]
      : (tensor<{BATCH * BLOCK}xi64>) -> tensor<{BATCH * BLOCK}x{VOCABULARY}xi64>
  %hit = stablehlo.compare EQ, %row, %wide
      : (tensor<{BATCH * BLOCK}x{VOCABULARY}xi64>,
         tensor<{BATCH * BLOCK}x{VOCABULARY}xi64>)
      -> tensor<{BATCH * BLOCK}x{VOCABULARY}xi1>
  %mask = stablehlo.convert %hit : (tensor<{BATCH * BLOCK}x{VOCABULARY}xi1>)
      -> tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>
  %picked = stablehlo.multiply %shifted, %mask
      : tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>
  %right = stablehlo.reduce(%picked init: %zero) applies stablehlo.add
      across dimensions = [1] : (tensor<{BATCH * BLOCK}x{VOCABULARY}xf32>, tensor<f32>)
      -> tensor<{BATCH * BLOCK}xf32>
  %loss = stablehlo.subtract %log, %right : tensor<{BATCH * BLOCK}xf32>
  %total = stablehlo.reduce(%loss init: %zero) applies stablehlo.add
      across dimensions = [0] : (tensor<{BATCH * BLOCK}xf32>, tensor<f32>)
      -> tensor<f32>
  %mean = stablehlo.divide %total, %count : tensor<f32>
  return %mean : tensor<f32>
}}
"""
KEYS = {
    "model_path": "model.mlir",
    "data_path": "text",
    "learning_rate": 0.1,
    "tau": 5,
    "outer_loop_steps": 6,
    "max_epochs": 20,
    "checkpoint_every": 2,
    "validate_every": 3,
}


def write_experiment(folder: Path, **changes) -> Path:
    """Model, text and experiment in `folder`; the path of the experiment."""
    (folder / "model.mlir").write_text(MODEL)
    (folder / "text").write_text("the quick brown fox jumps over the lazy dog. " * 99)
    path = folder / "x.json"
    path.write_text(json.dumps(KEYS | changes))
    return path
