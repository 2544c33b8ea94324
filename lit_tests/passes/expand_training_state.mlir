// RUN: pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=diloco' | filecheck %s
// RUN: pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=none' | filecheck %s --check-prefix=ALONE
// RUN: pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=none' --pcp-accumulate='batch=6 expand=false' | filecheck %s --check-prefix=PIECES
// RUN: pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=none' --pcp-accumulate='batch=6' | filecheck %s --check-prefix=LOOP
// RUN: not pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training=algorithm=async_local_sgd 2>&1 | filecheck %s --check-prefix=OWN
// RUN: not pcp-opt %s --pcp-infer-roles --pcp-grad=name=grad --pcp-expand-training=algorithm=noloco 2>&1 | filecheck %s --check-prefix=PAIRS
// RUN: not pcp-opt %s --pcp-infer-roles --pcp-expand-training=algorithm=mezo 2>&1 | filecheck %s --check-prefix=SLOPES

// The program's state has a role of its own, since "state" is the optimizer's. What is
// given is not in @init; @eval leaves the state.

// CHECK: func.func @main({{.*}}%arg1: tensor<4xf32> {pcp.init = "ones", pcp.name = "var", pcp.role = "model_state"}
// CHECK: func.func @grad({{.*}}%arg5: tensor<2xui32> {pcp.name = "rng", pcp.role = "key"}, {{.*}}) -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}, tensor<f32> {pcp.name = "size", pcp.role = "metric"}, tensor<4xf32> {pcp.name = "var", pcp.role = "model_state"}, tensor<i64> {pcp.name = "count", pcp.role = "model_state"}, tensor<4xf32> {pcp.name = "table", pcp.role = "model_state"}, tensor<4xf32> {pcp.name = "w", pcp.role = "grad"})
// CHECK: func.func @init{{.*}} -> (tensor<4xf32> {pcp.init = "ones", pcp.name = "w", pcp.role = "param"}, tensor<4xf32> {pcp.init = "ones", pcp.name = "var", pcp.role = "model_state"}, tensor<i64> {pcp.init = "zeros", pcp.name = "count", pcp.role = "model_state"}, tensor<i32> {pcp.init = "zeros", pcp.name = "step", pcp.role = "state"})
// CHECK: func.func @eval({{.*}}pcp.role = "frozen"{{.*}}) -> (tensor<f32> {pcp.name = "loss", pcp.role = "loss"}, tensor<f32> {pcp.name = "size", pcp.role = "metric"})
// CHECK: func.func @outer_step
// CHECK: func.func @state_sync(%arg0: tensor<i64> {pcp.name = "count", pcp.role = "anchor"}, %arg1: tensor<4xf32> {pcp.name = "var", pcp.role = "model_state"}, %arg2: tensor<i64> {pcp.name = "count", pcp.role = "model_state"}, %arg3: tensor<4xf32> {pcp.name = "table", pcp.role = "model_state"}, %arg4: tensor<f32> {pcp.name = "tokens", pcp.role = "tokens"})
// CHECK: "pcp.all_reduce"{{.*}}kind = "sum"{{.*}}(tensor<5xf32>) -> tensor<5xf32>
// CHECK: stablehlo.subtract %arg2, %arg0
// CHECK: "pcp.all_reduce"{{.*}}kind = "sum"{{.*}}(tensor<i64>) -> tensor<i64>
// CHECK: "pcp.broadcast"(%arg3)
// ALONE-NOT: @state_sync
// PIECES: func.func @grad(%arg0: tensor<4xf32> {{.*}}, %arg5: tensor<3x2xui32> {pcp.name = "rng", pcp.role = "key"}, %arg6: tensor<6x4xf32>
// PIECES: unrealized_conversion_cast %arg5, %arg6, %arg1, %arg2, %arg3
// PIECES: "pcp.microbatch"
// PIECES: stablehlo.reshape {{.*}} : (tensor<1x2xui32>) -> tensor<2xui32>
// PIECES: {carried = 3 : i64, count = 3 : i64, reduce = ["mean", "mean", "mean"]}
// LOOP: func.func @grad(
// LOOP: stablehlo.while(%{{.*}} = %arg1, %{{.*}} = %arg2, %{{.*}} = %arg3)
// OWN: the program has state ('var'), and members under async_local_sgd never all meet, so nothing makes one state of theirs; take an algorithm with rounds of all members
// PAIRS: members under noloco never all meet
// SLOPES: @main returns metric 'size', and an algorithm that knows slopes runs the model for its loss alone
func.func @main(
    %w: tensor<4xf32> {pcp.name = "w", pcp.role = "param"},
    %v: tensor<4xf32> {pcp.init = "ones", pcp.name = "var", pcp.role = "state"},
    %n: tensor<i64> {pcp.average = "sum", pcp.name = "count", pcp.role = "state"},
    %t: tensor<4xf32> {pcp.average = "first", pcp.init = "given", pcp.name = "table", pcp.role = "state"},
    %f: tensor<4xf32> {pcp.name = "base", pcp.role = "frozen"},
    %k: tensor<2xui32> {pcp.name = "rng", pcp.role = "key"},
    %x: tensor<2x4xf32> {pcp.name = "x", pcp.role = "data"})
    -> (tensor<f32>, tensor<f32> {pcp.name = "size"}, tensor<4xf32> {pcp.name = "var"}, tensor<i64> {pcp.name = "count"}, tensor<4xf32> {pcp.name = "table"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0 = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
  %1 = stablehlo.multiply %0, %x : tensor<2x4xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = stablehlo.add %n, %one : tensor<i64>
  %5 = stablehlo.add %t, %f : tensor<4xf32>
  return %2, %2, %3, %4, %5 : tensor<f32>, tensor<f32>, tensor<4xf32>, tensor<i64>, tensor<4xf32>
}
