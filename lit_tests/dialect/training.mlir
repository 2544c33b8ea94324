// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s

// CHECK: "pcp.grad"() {fn = @loss, has_value = true, sym_name = "loss_grad", wrt = [0]} : () -> ()
"pcp.grad"() {sym_name = "loss_grad", fn = @loss, has_value = true, wrt = [0]} : () -> ()

// CHECK-LABEL: func.func @apply
func.func @apply(%t: tuple<tensor<4xf32>, tensor<4xbf16>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>> {
  // CHECK: "pcp.optimizer"(%arg0) {count = 1 : i64, hyper = {lr = 6.000000e-04 : f64}, kind = "adamw", zero_stage = 1 : i64}
  %0 = "pcp.optimizer"(%t) {count = 1, hyper = {lr = 6.0e-4}, kind = "adamw", zero_stage = 1} : (tuple<tensor<4xf32>, tensor<4xbf16>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>) -> tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>
  return %0 : tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i32>>
}

// CHECK-LABEL: func.func @outer
func.func @outer(%t: tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>> {
  // CHECK: "pcp.outer"(%arg0) {axes = ["workers"], count = 1 : i64, hyper = {lr = 5.000000e-01 : f64}, kind = "diloco", mesh = @w}
  %0 = "pcp.outer"(%t) {axes = ["workers"], count = 1, hyper = {lr = 0.5}, kind = "diloco", mesh = @w} : (tuple<tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>>) -> tuple<tensor<4xf32>, tensor<4xf32>>
  return %0 : tuple<tensor<4xf32>, tensor<4xf32>>
}

// Of one type, as a scalar's are, values stand alone; without momentum there is no state.
// CHECK-LABEL: func.func @scalar
func.func @scalar(%anchor: tensor<f32>, %local: tensor<f32>, %tokens: tensor<f32>) -> tensor<f32> {
  // CHECK: "pcp.outer"(%arg0, %arg1, %arg2) {axes = ["workers"], count = 1 : i64, hyper = {momentum = 0 : i64}, kind = "diloco", mesh = @w}
  %0 = "pcp.outer"(%anchor, %local, %tokens) {axes = ["workers"], count = 1, hyper = {momentum = 0}, kind = "diloco", mesh = @w} : (tensor<f32>, tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// CHECK-LABEL: func.func @accumulate
func.func @accumulate(%x: tensor<8x4xf32>) -> tensor<2x4xf32> {
  // CHECK: "pcp.microbatch"(%arg0) ({
  // CHECK-NEXT: ^bb0(%{{.*}}: tensor<2x4xf32>):
  // CHECK-NEXT: pcp.stop_gradient
  // CHECK: }) {count = 4 : i64, reduce = ["mean"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  %0 = "pcp.microbatch"(%x) ({
  ^bb0(%a: tensor<2x4xf32>):
    %s = "pcp.stop_gradient"(%a) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    "pcp.yield"(%s) : (tensor<2x4xf32>) -> ()
  }) {count = 4, reduce = ["mean"]} : (tensor<8x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
