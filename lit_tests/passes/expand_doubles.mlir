// RUN: pcp-opt %s --pcp-expand-doubles --split-input-file | filecheck %s

// The sine by words of 2/π; infinities have none.
// CHECK-LABEL: func.func @sine
// CHECK: stablehlo.bitcast_convert %arg0 : (tensor<3xf64>) -> tensor<3xui64>
// CHECK-NOT: stablehlo.sine
// CHECK: stablehlo.xor
// CHECK: return
func.func @sine(%x: tensor<3xf64>) -> tensor<3xf64> {
  %0 = stablehlo.sine %x : tensor<3xf64>
  return %0 : tensor<3xf64>
}

// -----

// Long division, 11 bits a round.
// CHECK-LABEL: func.func @remainder
// CHECK: stablehlo.while
// CHECK: stablehlo.shift_left
// CHECK: stablehlo.remainder %{{.*}} : tensor<3xui64>
// CHECK-NOT: stablehlo.remainder %{{.*}} : tensor<3xf64>
// CHECK: return
func.func @remainder(%x: tensor<3xf64>, %y: tensor<3xf64>) -> tensor<3xf64> {
  %0 = stablehlo.remainder %x, %y : tensor<3xf64>
  return %0 : tensor<3xf64>
}

// -----

// CHECK-LABEL: func.func @ceil
// CHECK: %[[N:.*]] = stablehlo.negate %arg0
// CHECK: %[[F:.*]] = stablehlo.floor %[[N]]
// CHECK: %[[C:.*]] = stablehlo.negate %[[F]]
// CHECK: return %[[C]]
func.func @ceil(%x: tensor<3xf64>) -> tensor<3xf64> {
  %0 = stablehlo.ceil %x : tensor<3xf64>
  return %0 : tensor<3xf64>
}

// -----

// What IREE computes well stays, and all of f32.
// CHECK-LABEL: func.func @others
// CHECK-NEXT: stablehlo.exponential
// CHECK-NEXT: stablehlo.log
// CHECK-NEXT: stablehlo.tanh
// CHECK-NEXT: return
func.func @others(%x: tensor<3xf64>, %y: tensor<3xf32>)
    -> (tensor<3xf64>, tensor<3xf64>, tensor<3xf32>) {
  %0 = stablehlo.exponential %x : tensor<3xf64>
  %1 = stablehlo.log %x : tensor<3xf64>
  %2 = stablehlo.tanh %y : tensor<3xf32>
  return %0, %1, %2 : tensor<3xf64>, tensor<3xf64>, tensor<3xf32>
}
