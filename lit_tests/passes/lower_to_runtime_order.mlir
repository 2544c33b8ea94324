// RUN: pcp-opt %s --pcp-lower-to-runtime --allow-unregistered-dialect | filecheck %s

// IREE would move the sum in front of what makes %e, to write both into one place.
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
// CHECK: func.func @early
// CHECK: %[[E:.*]] = stablehlo.tanh %arg0
// CHECK: %[[R:.*]] = "util.call"(%arg1)
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier %[[E]]
// CHECK: stablehlo.concatenate %[[R]], %[[B]], dim = 0
func.func @early(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<8xf32> {
  %e = stablehlo.tanh %a : tensor<4xf32>
  %r = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %c = stablehlo.concatenate %r, %e, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// The first part is written first: nothing has to be moved for it.
// CHECK: func.func @in_order
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @in_order(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<8xf32> {
  %e = stablehlo.tanh %a : tensor<4xf32>
  %r = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %c = stablehlo.concatenate %e, %r, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// Behind the sum anyway, since it needs it itself.
// CHECK: func.func @needs_it_too
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @needs_it_too(%b: tensor<4xf32>) -> tensor<8xf32> {
  %r = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %e = stablehlo.tanh %r : tensor<4xf32>
  %c = stablehlo.concatenate %r, %e, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// CHECK: func.func @update
// CHECK: %[[U:.*]] = stablehlo.tanh %arg0
// CHECK: %[[S:.*]] = "util.call"(%arg1)
// CHECK: %[[H:.*]] = stablehlo.optimization_barrier %[[U]]
// CHECK: stablehlo.dynamic_update_slice %[[S]], %[[H]], %arg2
func.func @update(%a: tensor<2xf32>, %b: tensor<4xf32>, %i: tensor<i32>) -> tensor<4xf32> {
  %e = stablehlo.tanh %a : tensor<2xf32>
  %r = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
  %c = stablehlo.dynamic_update_slice %r, %e, %i : (tensor<4xf32>, tensor<2xf32>, tensor<i32>) -> tensor<4xf32>
  return %c : tensor<4xf32>
}

// In a branch: its block counts alone, and the sum of the branch is in it.
// CHECK: func.func @nested
// CHECK: stablehlo.if
// CHECK: %[[N:.*]] = stablehlo.tanh %arg0
// CHECK: %[[K:.*]] = "util.call"(%arg1)
// CHECK: %[[L:.*]] = stablehlo.optimization_barrier %[[N]]
// CHECK: stablehlo.concatenate %[[K]], %[[L]], dim = 0
// CHECK: stablehlo.return
// CHECK-NOT: optimization_barrier
// CHECK: return
func.func @nested(%a: tensor<4xf32>, %b: tensor<4xf32>, %p: tensor<i1>) -> tensor<8xf32> {
  %c = "stablehlo.if"(%p) ({
    %e = stablehlo.tanh %a : tensor<4xf32>
    %r = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
    %c = stablehlo.concatenate %r, %e, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
    stablehlo.return %c : tensor<8xf32>
  }, {
    %c = stablehlo.concatenate %b, %a, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
    stablehlo.return %c : tensor<8xf32>
  }) : (tensor<i1>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}

// A sum inside of an op is needed by all that the op gives.
// CHECK: func.func @inside
// CHECK: %[[I:.*]] = stablehlo.tanh %arg0
// CHECK: "stablehlo.if"
// CHECK: %[[J:.*]] = stablehlo.optimization_barrier %[[I]]
// CHECK: stablehlo.concatenate %{{.*}}, %[[J]], dim = 0
func.func @inside(%a: tensor<4xf32>, %b: tensor<4xf32>, %p: tensor<i1>) -> tensor<8xf32> {
  %e = stablehlo.tanh %a : tensor<4xf32>
  %r = "stablehlo.if"(%p) ({
    %s = "pcp.all_reduce"(%b) {axes = ["dp"], kind = "sum", mesh = @m} : (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %s : tensor<4xf32>
  }, {
    stablehlo.return %b : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  %c = stablehlo.concatenate %r, %e, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %c : tensor<8xf32>
}
