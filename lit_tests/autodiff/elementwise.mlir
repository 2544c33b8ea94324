// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// The forward result is used again, not computed twice.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NEXT: %[[Y:.+]] = stablehlo.exponential %arg0
// CHECK-NEXT: %[[X:.+]] = stablehlo.multiply %arg1, %[[Y]]
// CHECK-NEXT: return %[[Y]], %[[X]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.exponential %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// A value used twice has its two terms added once.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[A:.+]] = stablehlo.multiply %arg1, %arg0
// CHECK-NEXT: stablehlo.add %[[A]], %[[A]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.multiply %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// A constant exponent of two makes no power.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.power
// CHECK-NOT: stablehlo.power
// CHECK: return
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %two = stablehlo.constant dense<2.0> : tensor<4xf32>
  %y = stablehlo.power %x, %two : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// Ties of a maximum are shared.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.compare EQ, %arg0, %arg1
// CHECK: dense<5.000000e-01>
// CHECK: stablehlo.compare GT, %arg0, %arg1
// CHECK: stablehlo.compare GT, %arg1, %arg0
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %z = stablehlo.maximum %x, %y : tensor<4xf32>
  return %z : tensor<4xf32>
}

// -----

// No cotangent passes through an integer.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[ZERO:.+]] = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
// CHECK: return %{{.+}}, %[[ZERO]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %n = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xi32>
  %y = stablehlo.convert %n : (tensor<4xi32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
