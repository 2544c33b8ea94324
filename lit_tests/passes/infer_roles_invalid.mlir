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
    // expected-error@below {{argument 1 of @main has no role 'prm' (roles: param, data, state, frozen, key). Did you mean 'param'?}}
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

// -----

// expected-error@below {{state 'm' of @main has no result of that name and type, its new value; what the step only reads has the role "frozen"}}
func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    %m: tensor<4xf32> {pcp.name = "m", pcp.role = "state"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

// expected-error@below {{result 1 of @main is new state 'm' of tensor<f32>; the argument is tensor<4xf32>}}
func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    %m: tensor<4xf32> {pcp.name = "m", pcp.role = "state"}) -> (tensor<f32>, tensor<f32> {pcp.name = "m"}) {
  return %w, %w : tensor<f32>, tensor<f32>
}

// -----

// expected-error@below {{result 1 of @main is new state 'mean', and no argument of the role state has that name. Did you mean 'means'?}}
func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    %m: tensor<f32> {pcp.name = "means", pcp.role = "state"})
    -> (tensor<f32>, tensor<f32> {pcp.name = "mean", pcp.role = "state"}) {
  return %w, %m : tensor<f32>, tensor<f32>
}

// -----

// expected-error@below {{result 2 of @main: two results are named 'm'}}
func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    %m: tensor<f32> {pcp.name = "m", pcp.role = "state"})
    -> (tensor<f32>, tensor<f32> {pcp.name = "m"}, tensor<f32> {pcp.name = "m"}) {
  return %w, %m, %m : tensor<f32>, tensor<f32>, tensor<f32>
}

// -----

// expected-error@below {{result 1 of @main is tensor<4xf32>; a metric 'norms' is one scalar}}
func.func @main(%w: tensor<f32> {pcp.role = "param"}, %x: tensor<4xf32>)
    -> (tensor<f32>, tensor<4xf32> {pcp.name = "norms", pcp.role = "metric"}) {
  return %w, %x : tensor<f32>, tensor<4xf32>
}

// -----

// expected-error@below {{result 1 of @main has no role 'metrics' (roles: loss, metric, state, grad, result). Did you mean 'metric'?}}
func.func @main(%w: tensor<f32> {pcp.role = "param"})
    -> (tensor<f32>, tensor<f32> {pcp.role = "metrics"}) {
  return %w, %w : tensor<f32>, tensor<f32>
}

// -----

func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    // expected-error@below {{argument 1 of @main: tensor<2xi32> cannot be a key; a key is one tensor<2xui32>}}
    %k: tensor<2xi32> {pcp.role = "key"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    %k: tensor<2xui32> {pcp.role = "key"},
    // expected-error@below {{argument 2 of @main is a second key, after argument 1; a program has one, and splits it}}
    %l: tensor<2xui32> {pcp.role = "key"}) -> tensor<f32> {
  return %w : tensor<f32>
}

// -----

func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    // expected-error@below {{argument 1 of @main: no pcp.average 'avg' (there is: mean, max, sum, first).}}
    %m: tensor<f32> {pcp.average = "avg", pcp.name = "m", pcp.role = "state"})
    -> (tensor<f32>, tensor<f32> {pcp.name = "m"}) {
  return %w, %m : tensor<f32>, tensor<f32>
}

// -----

func.func @main(
    %w: tensor<f32> {pcp.role = "param"},
    // expected-error@below {{argument 1 of @main: pcp.average says what becomes of state when workers meet, and this is a frozen; leave it out}}
    %m: tensor<f32> {pcp.average = "mean", pcp.role = "frozen"}) -> tensor<f32> {
  return %w : tensor<f32>
}
