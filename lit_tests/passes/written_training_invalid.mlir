// RUN: pcp-opt %s --pcp-expand-training --split-input-file --verify-diagnostics

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) {
  // expected-error@below {{pcp.optimizer: sgd: unknown key 'rate' (known: lr}}
  %r = "pcp.optimizer"(%t) {count = 1, hyper = {rate = 0.1}, kind = "sgd"} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) {
  // expected-error@below {{pcp.optimizer: pcp-zero{stage=...} cuts the state; run it, without zero_stage}}
  %r = "pcp.optimizer"(%t) {count = 1, hyper = {}, kind = "sgd", zero_stage = 1} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xbf16>, tensor<4xbf16>, tensor<4xbf16>, tensor<i32>>) {
  // expected-error@below {{pcp.optimizer: has a state of tensor<4xbf16>, and the rule keeps tensor<4xf32>}}
  %r = "pcp.optimizer"(%t) {count = 1, hyper = {}, kind = "nesterov"} : (tuple<tensor<4xbf16>, tensor<4xbf16>, tensor<4xbf16>, tensor<i32>>) -> tuple<tensor<4xbf16>, tensor<4xbf16>, tensor<i32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf64>, tensor<i32>>) {
  // expected-error@below {{pcp.optimizer: cannot update tensor<4xf32> by tensor<4xf64>; convert one}}
  %r = "pcp.optimizer"(%t) {count = 1, hyper = {}, kind = "sgd"} : (tuple<tensor<4xf32>, tensor<4xf64>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<i32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) {
  // expected-error@below {{pcp.outer: diloco: unknown key 'beta1'}}
  %r = "pcp.outer"(%t) {axes = ["dp"], count = 1, hyper = {beta1 = 0.5}, kind = "diloco", mesh = @m} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  return
}

// -----

func.func @f(%t: tuple<tensor<4xbf16>, tensor<4xbf16>, tensor<4xbf16>, tensor<f32>>) {
  // expected-error@below {{pcp.outer: has a state of tensor<4xbf16>, and the rule keeps tensor<4xf32>}}
  %r = "pcp.outer"(%t) {axes = ["dp"], count = 1, kind = "diloco", mesh = @m} : (tuple<tensor<4xbf16>, tensor<4xbf16>, tensor<4xbf16>, tensor<f32>>) -> tuple<tensor<4xbf16>, tensor<4xbf16>>
  return
}
