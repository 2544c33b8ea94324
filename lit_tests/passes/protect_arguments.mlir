// RUN: pcp-opt %s --pcp-verify-inplace=func=* --pcp-protect-arguments | filecheck %s

// What is kept is read behind everything else, whatever the function does with it.

// CHECK-LABEL: func.func @main
// CHECK: %[[NEW:.*]] = stablehlo.dynamic_update_slice %arg0
// CHECK: "util.optimization_barrier"(%arg0)
// CHECK-NEXT: "util.optimization_barrier"(%arg1)
// CHECK-NEXT: "util.optimization_barrier"(%arg2)
// CHECK-NEXT: return %arg0, %[[NEW]]
func.func @main(%c: tensor<4xf32>, %u: tensor<1xf32>, %i: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.dynamic_update_slice %c, %u, %i : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
  return %c, %0 : tensor<4xf32>, tensor<4xf32>
}

// A cache and its update are one tensor by name and role: it is given away, and is
// taken out of its argument in front of everything else.

// CHECK-LABEL: func.func @decode
// CHECK-SAME: %arg0: tensor<4xf32> {iree.abi.consume, pcp.name = "cache", pcp.role = "state"}
// CHECK: %[[CACHE:.*]] = "util.optimization_barrier"(%arg0)
// CHECK: stablehlo.dynamic_update_slice %[[CACHE]]
// CHECK: "util.optimization_barrier"(%arg1)
// CHECK-NEXT: "util.optimization_barrier"(%arg2)
// CHECK-NEXT: return
func.func @decode(%c: tensor<4xf32> {pcp.name = "cache", pcp.role = "state"}, %u: tensor<1xf32>, %i: tensor<i32>) -> (tensor<4xf32> {pcp.name = "cache", pcp.role = "state"}) {
  %0 = stablehlo.dynamic_update_slice %c, %u, %i : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// Not where the old cache is returned as well: then it is copied.

// CHECK-LABEL: func.func @beside
// CHECK-SAME: pcp.copied = "it is returned as it came"
// CHECK: "util.optimization_barrier"(%arg0)
// CHECK-NEXT: "util.optimization_barrier"(%arg1)
// CHECK-NEXT: "util.optimization_barrier"(%arg2)
// CHECK-NEXT: return
func.func @beside(%c: tensor<4xf32> {pcp.name = "cache", pcp.role = "state"}, %u: tensor<1xf32>, %i: tensor<i32>) -> (tensor<4xf32> {pcp.name = "cache", pcp.role = "state"}, tensor<4xf32>) {
  %0 = stablehlo.dynamic_update_slice %c, %u, %i : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
  return %0, %c : tensor<4xf32>, tensor<4xf32>
}

// Private functions have no caller but those here, and functions without arguments
// have nothing to keep.

// CHECK-LABEL: func.func private @helper
// CHECK-NOT: optimization_barrier
func.func private @helper(%c: tensor<4xf32>) -> tensor<4xf32> {
  return %c : tensor<4xf32>
}

// CHECK-LABEL: func.func @constant
// CHECK-NOT: optimization_barrier
func.func @constant() -> tensor<f32> {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}

// Unsigned integers go through as bits.

// CHECK-LABEL: func.func @unsigned
// CHECK: %[[BITS:.*]] = stablehlo.bitcast_convert %arg0 : (tensor<4xui8>) -> tensor<4xi8>
// CHECK: "util.optimization_barrier"(%[[BITS]])
func.func @unsigned(%c: tensor<4xui8>) -> tensor<4xui8> {
  %0 = stablehlo.add %c, %c : tensor<4xui8>
  return %0 : tensor<4xui8>
}

// What has no elements has nothing to keep, and no barrier.

// CHECK-LABEL: func.func @empty
// CHECK-NOT: "util.optimization_barrier"(%arg0)
// CHECK: "util.optimization_barrier"(%arg1)
func.func @empty(%e: tensor<0x4xf32>, %a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
