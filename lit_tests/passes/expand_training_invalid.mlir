// RUN: pcp-opt %s --pcp-expand-training --split-input-file --verify-diagnostics

// expected-error@below {{argument 0 of @main has no pcp.name and pcp.role; run pcp-infer-roles first}}
func.func @main(%w: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

// expected-error@below {{@main has no parameters}}
func.func @main(%w: tensor<f32> {pcp.name = "w", pcp.role = "data"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(
    %w: tensor<f32> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"},
    // expected-error@below {{argument 'm' has the role 'outer'; a model to train takes param, data, state, frozen, key}}
    %m: tensor<f32> {pcp.name = "m", pcp.role = "outer"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

// expected-error@below {{state 'm' of @main has no result of its name and type; run pcp-infer-roles first}}
func.func @main(
    %w: tensor<f32> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"},
    %m: tensor<f32> {pcp.init = "zeros", pcp.name = "m", pcp.role = "state"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

// expected-error@below {{state 'm' is tensor<i32>, which has no pcp.average mean; integers have max, sum and first}}
func.func @main(
    %w: tensor<f32> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"},
    %m: tensor<i32> {pcp.average = "mean", pcp.init = "zeros", pcp.name = "m", pcp.role = "state"})
    -> (tensor<f32>, tensor<i32> {pcp.name = "m", pcp.role = "state"}) {
  return %w, %m : tensor<f32>, tensor<i32>
}

// -----

// expected-error@below {{@main returns tensor<f32>, tensor<f32>; training needs one floating-point scalar, the loss}}
func.func @main(%w: tensor<f32> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"}) -> (tensor<f32>, tensor<f32>) {
  return %w, %w : tensor<f32>, tensor<f32>
}

// -----

// expected-error@below {{argument 0 has no pcp.init; run pcp-infer-roles first}}
func.func @main(%w: tensor<f32> {pcp.name = "w", pcp.role = "param"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(%w: tensor<f32> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"}) -> tensor<f32> {
  return %w : tensor<f32>
}
// expected-error@below {{training needs (tensor<f32>) -> (tensor<f32>, tensor<f32>): what the model returns, and one gradient a parameter}}
func.func @grad(%w: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(
    // expected-error@below {{parameter 'w' is bf16, which loses updates smaller than its last place; run pcp-master-weights in front of the derivative}}
    %w: tensor<bf16> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"}) -> tensor<bf16> {
  return %w : tensor<bf16>
}
