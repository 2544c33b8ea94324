// RUN: pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training='optimizer=adamw{lr=0.01} algorithm=none ema=0.9' | filecheck %s --check-prefix=SAID
// RUN: pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training='optimizer=adamw{lr=0.01} algorithm=none ema=0.9' --pcp-first-values --symbol-dce | filecheck %s

// @init says on each result how it begins; what is drawn has a stream of its own, and
// an average begins as @inner_init makes it.

// SAID: func.func @init({{.*}}) -> (tensor<2x4xf32> {pcp.init = "normal(0.02)", pcp.name = "w", pcp.role = "param", pcp.stream = 0 : i32}, tensor<4xf32> {pcp.init = "ones", pcp.name = "s", pcp.role = "param"}, tensor<4xf32> {pcp.init = "uniform(-1.0,1.0)", pcp.name = "v", pcp.role = "param", pcp.stream = 2 : i32}, tensor<2x4xf32> {pcp.init = "zeros", pcp.name = "m.w", pcp.role = "state"}
// SAID-SAME: tensor<2x4xf32> {pcp.init = "@inner_init", pcp.name = "ema.w", pcp.role = "model_state"}
// SAID-SAME: tensor<i32> {pcp.init = "zeros", pcp.name = "step", pcp.role = "state"}

// CHECK: module attributes {{.*}}pcp.first_values = [{pcp.init = "normal(0.02)", pcp.name = "w", pcp.role = "param", pcp.stream = 0 : i32, type = tensor<2x4xf32>}, {pcp.init = "ones", pcp.name = "s", pcp.role = "param", type = tensor<4xf32>}
// CHECK-NOT: @init
// CHECK: func.func @inner_init
// CHECK-NOT: @init

func.func @main(
    %w: tensor<2x4xf32> {pcp.name = "w", pcp.role = "param", pcp.init = "normal(0.02)"},
    %s: tensor<4xf32> {pcp.name = "s", pcp.role = "param", pcp.init = "ones"},
    %v: tensor<4xf32> {pcp.name = "v", pcp.role = "param", pcp.init = "uniform(-1,1)"},
    %x: tensor<2x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.add %s, %v : tensor<4xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
  %2 = stablehlo.multiply %w, %1 : tensor<2x4xf32>
  %3 = stablehlo.multiply %2, %x : tensor<2x4xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
  return %4 : tensor<f32>
}
