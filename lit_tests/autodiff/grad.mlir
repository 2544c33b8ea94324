// RUN: pcp-opt %s --pcp-grad --split-input-file | filecheck %s

// Roles choose what is differentiated for: the parameter, not the data.
// CHECK-LABEL: func.func @main_grad(
// CHECK-SAME: -> (tensor<f32>, tensor<4xf32>)
// CHECK: %[[ONE:.+]] = stablehlo.constant dense<1.000000e+00> : tensor<f32>
// CHECK: stablehlo.broadcast_in_dim %[[ONE]]
func.func @main(%w: tensor<4xf32> {pcp.role = "param"}, %x: tensor<4xf32> {pcp.role = "data"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %w, %x : tensor<4xf32>
  %loss = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %loss : tensor<f32>
}

// -----

// A result on which nothing depends, an input that nothing uses, and a value the
// program declares constant: zeros appear only where the function returns them.
// CHECK-LABEL: func.func @main_grad(
// CHECK-SAME: -> (tensor<f32>, tensor<2xf32>, tensor<f32>, tensor<3xf32>)
// CHECK-DAG: %[[ZERO:.+]] = stablehlo.constant dense<0.000000e+00> : tensor<3xf32>
// CHECK-NOT: stablehlo.cosine
// CHECK: return %{{.+}}, %{{.+}}, %{{.+}}, %[[ZERO]]
func.func @main(%x: tensor<f32>, %unused: tensor<3xf32>) -> (tensor<f32>, tensor<2xf32>) {
  %s = stablehlo.sine %x : tensor<f32>
  %c = "pcp.stop_gradient"(%s) : (tensor<f32>) -> tensor<f32>
  %y = stablehlo.multiply %x, %c : tensor<f32>
  %aux = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<2xf32>
  return %y, %aux : tensor<f32>, tensor<2xf32>
}

// -----

// Calls are differentiated through, at any depth.
// CHECK-LABEL: func.func @main_grad(
// CHECK-NOT: call
// CHECK: stablehlo.cosine
// CHECK: return
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = call @f(%x) : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  %y = call @g(%x) : (tensor<f32>) -> tensor<f32>
  %z = call @g(%y) : (tensor<f32>) -> tensor<f32>
  return %z : tensor<f32>
}
func.func private @g(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.sine %x : tensor<f32>
  return %y : tensor<f32>
}
