// RUN: pcp-opt %s --pcp-infer-roles --split-input-file --verify-diagnostics

// expected-error@below {{cannot tell parameters from data in @main: all arguments are floats and none is marked}}
func.func @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<f32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error@below {{@main has no parameters to train}}
func.func @main(%x: tensor<4xf32> {pcp.role = "data"}, %c: tensor<f32> {pcp.role = "data"}) -> tensor<f32> {
  return %c : tensor<f32>
}

// -----

// expected-error@below {{@main returns tensor<4xf32>; training needs a floating-point scalar first, the loss}}
func.func @main(%w: tensor<4xf32>, %x: tensor<4xi32>) -> tensor<4xf32> {
  return %w : tensor<4xf32>
}

// -----

func.func @main(
    %w: tensor<f32>,
    // expected-error@below {{argument 1 of @main has no role 'prm' (roles: param, data, state). Did you mean 'param'?}}
    %x: tensor<4xi32> {pcp.role = "prm"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(
    %w: tensor<f32>,
    // expected-error@below {{argument 1 of @main: tensor<4xi32> cannot be a parameter; only floats are trained}}
    %x: tensor<4xi32> {pcp.role = "param"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(
    // expected-error@below {{argument 0 of @main: two arguments are named 'w'}}
    %w: tensor<f32> {pcp.name = "w"},
    %x: tensor<4xi32> {pcp.name = "w"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(
    // expected-error@below {{argument 0 of @main: no initializer 'gauss(1)'}}
    %w: tensor<f32> {pcp.init = "gauss(1)"},
    %x: tensor<4xi32>) -> tensor<f32> {
  return %w : tensor<f32>
}
