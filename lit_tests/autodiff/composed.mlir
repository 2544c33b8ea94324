// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// A map is its body on whole tensors, in the copy that is differentiated.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NOT: stablehlo.map
// CHECK: %[[Y:.+]] = stablehlo.sine %arg0
// CHECK: %[[C:.+]] = stablehlo.cosine %arg0
// CHECK: %[[X:.+]] = stablehlo.multiply %arg1, %[[C]]
// CHECK: return %[[Y]], %[[X]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = "stablehlo.map"(%x) ({
  ^bb0(%a: tensor<f32>):
    %s = stablehlo.sine %a : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {dimensions = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// Tuples are gone.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NOT: tuple
// CHECK: stablehlo.multiply %arg2, %arg1
// CHECK: stablehlo.multiply %arg2, %arg0
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %t = stablehlo.tuple %x, %y : tuple<tensor<4xf32>, tensor<4xf32>>
  %a = stablehlo.get_tuple_element %t[0] : (tuple<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>
  %b = stablehlo.get_tuple_element %t[1] : (tuple<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>
  %c = stablehlo.multiply %a, %b : tensor<4xf32>
  return %c : tensor<4xf32>
}

// -----

// CHLO's broadcast is spelled out; its transpose is a sum.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.broadcast_in_dim %arg1, dims = [1]
// CHECK: stablehlo.reduce(%arg2
// CHECK-SAME: stablehlo.add across dimensions = [0]
func.func @main(%x: tensor<3x4xf32>, %b: tensor<4xf32>) -> tensor<3x4xf32> {
  %y = chlo.broadcast_add %x, %b : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}

// -----

// A shape that turns out to be constant.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.reshape %arg0 : (tensor<6xf32>) -> tensor<2x3xf32>
// CHECK: stablehlo.reshape %arg1 : (tensor<2x3xf32>) -> tensor<6xf32>
func.func @main(%x: tensor<6xf32>) -> tensor<2x3xf32> {
  %n = stablehlo.constant dense<[2, 3]> : tensor<2xi64>
  %y = stablehlo.dynamic_reshape %x, %n : (tensor<6xf32>, tensor<2xi64>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// In bf16 the sum of a bias is made in f32 and rounded once.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[G:.+]] = stablehlo.convert %arg1 : (tensor<9x4xbf16>) -> tensor<9x4xf32>
// CHECK: %[[S:.+]] = stablehlo.reduce(%[[G]]
// CHECK: stablehlo.convert %[[S]] : (tensor<4xf32>) -> tensor<4xbf16>
func.func @main(%b: tensor<4xbf16>) -> tensor<9x4xbf16> {
  %y = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4xbf16>) -> tensor<9x4xbf16>
  return %y : tensor<9x4xbf16>
}
