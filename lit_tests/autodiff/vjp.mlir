// RUN: pcp-opt %s --pass-pipeline='builtin.module(pcp-vjp{func=main},pcp-vjp{func=main wrt=1 name=of_second})' | filecheck %s

// The function stays; the new one takes a cotangent for the floating-point result
// only, and gives one for each input of `wrt`. Nothing is computed for the others.
// CHECK-LABEL: func.func @main(
// CHECK-LABEL: func.func @of_second(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<i32>, %arg3: tensor<4xf32>)
// CHECK-SAME: -> (tensor<4xf32>, tensor<i32>, tensor<4xf32>)
// CHECK-NEXT: %[[Y:.+]] = stablehlo.sine %arg0
// CHECK-NEXT: %[[Z:.+]] = stablehlo.multiply %[[Y]], %arg1
// CHECK-NEXT: %[[G:.+]] = stablehlo.multiply %arg3, %[[Y]]
// CHECK-NEXT: return %[[Z]], %arg2, %[[G]]

// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[Y:.+]] = stablehlo.sine %arg0
// CHECK: %[[GX:.+]] = stablehlo.multiply %arg3, %arg1
// CHECK-NEXT: %[[GY:.+]] = stablehlo.multiply %arg3, %[[Y]]
// CHECK-NEXT: %[[C:.+]] = stablehlo.cosine %arg0
// CHECK-NEXT: %[[X:.+]] = stablehlo.multiply %[[GX]], %[[C]]
// CHECK-NEXT: return %{{.+}}, %arg2, %[[X]], %[[GY]]
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<i32>) {
  %y = stablehlo.sine %x : tensor<4xf32>
  %z = stablehlo.multiply %y, %w : tensor<4xf32>
  return %z, %n : tensor<4xf32>, tensor<i32>
}
