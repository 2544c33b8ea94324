// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// The derivative of the function, not of the polynomial that replaces it.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: chlo.erf %arg0
// CHECK: stablehlo.exponential
// CHECK: stablehlo.constant dense<1.12837923> : tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = chlo.erf %x : tensor<4xf32> -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @main_vjp(
// CHECK: %{{.+}}, %[[AT:.+]] = chlo.top_k
// CHECK: stablehlo.reshape %[[AT]]
// CHECK: "stablehlo.scatter"
func.func @main(%x: tensor<2x6xf32>) -> tensor<2x3xf32> {
  %y, %i = chlo.top_k(%x, k = 3) : tensor<2x6xf32> -> (tensor<2x3xf32>, tensor<2x3xi32>)
  return %y : tensor<2x3xf32>
}
